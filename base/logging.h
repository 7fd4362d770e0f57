#ifndef DDPOPT_BASE_LOGGING_H_
#define DDPOPT_BASE_LOGGING_H_

// LOG and CHECK from glog. For .cc files only: no public header may leak these macros.
//
// c10's logging header defines the same names for LibTorch's own use; it is included first and its macros dropped, and its
// include guard keeps it from coming back.

#include "c10/util/Logging.h"  // IWYU pragma: keep

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LE
#undef CHECK_LT
#undef CHECK_GE
#undef CHECK_GT
#undef CHECK_NOTNULL
#undef DCHECK
#undef DCHECK_EQ
#undef DCHECK_NE
#undef DCHECK_LE
#undef DCHECK_LT
#undef DCHECK_GE
#undef DCHECK_GT
#undef DCHECK_NOTNULL
#undef LOG
#undef LOG_IF
#undef VLOG
#undef VLOG_IF
#undef VLOG_IS_ON

#include "glog/logging.h"  // IWYU pragma: export

#endif  // DDPOPT_BASE_LOGGING_H_
