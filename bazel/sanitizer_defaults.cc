// Options and suppressions of the sanitizers, linked into every test and program of --config=asan, ubsan and tsan. Nothing of ours is
// suppressed: what stands here is LibTorch's, which isn't instrumented. The variables ASAN_OPTIONS, LSAN_OPTIONS, UBSAN_OPTIONS and
// TSAN_OPTIONS come after these.

extern "C" {

const char* __asan_default_options() {
  // alloc_dealloc_mismatch: LibTorch's libraries bring allocators of their own, whose memory theirs and our code free alike.
  // detect_odr_violation: registrations of operators stand in several of LibTorch's libraries under one name.
  return "detect_stack_use_after_return=1:strict_string_checks=1:alloc_dealloc_mismatch=0:detect_odr_violation=0";
}

const char* __lsan_default_suppressions() {
  // Registries, dispatch tables and thread pools that live as long as the process, and that the leak checker doesn't see behind LibTorch's
  // own pointers (tagged, or in memory that it doesn't scan).
  return "leak:libtorch_cpu.so\n"
         "leak:libc10.so\n"
         "leak:libgomp\n";  // OpenMP's threads outlive main
}

const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

const char* __tsan_default_options() {
  // LibTorch's own accesses of memory are not judged, since its atomics, such as reference counts, aren't seen. Its mutexes and threads are:
  // nothing may be suppressed by library (called_from_lib), which would hide these, and report what they order.
  return "ignore_noninstrumented_modules=1:halt_on_error=0:die_after_fork=0:second_deadlock_stack=1";
}

}  // extern "C"
