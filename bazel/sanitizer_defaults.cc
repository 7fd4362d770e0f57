// Options of the sanitizers, linked into every test and program of --config=asan, ubsan and tsan. Nothing of ours is suppressed; LibTorch
// isn't instrumented. What the variables ASAN_OPTIONS, UBSAN_OPTIONS and TSAN_OPTIONS say comes after these.

extern "C" {

const char* __asan_default_options() { return "detect_stack_use_after_return=1:strict_string_checks=1"; }

// An eager graph of LibTorch that keeps itself: y is saved for z's backward, then a view of y is overwritten with what depends on z. It ends
// with its backward alone, which such a program cannot run.
const char* __lsan_default_suppressions() { return "leak:torch::autograd::CopySlices\n"; }

const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

const char* __tsan_default_options() {
  // LibTorch's own accesses of memory are not judged, since its atomics, such as reference counts, aren't seen. Its mutexes and threads
  // are: nothing may be suppressed by library (called_from_lib), which would hide these, and report what they order.
  // Threads that still run when a process ends are no finding: a rank that fails ends in the middle, on purpose.
  return "ignore_noninstrumented_modules=1:halt_on_error=0:die_after_fork=0:second_deadlock_stack=1:report_thread_leaks=0";
}

}  // extern "C"
