// What the thread sanitizer must not report: the C library's own locks, which it does not see.
//
// glog asks for the time zone with every line. tzset keeps it under a lock inside libc; the
// sanitizer knows malloc and free of it only, and takes two threads that log for a race.

extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:tzset_internal\n"; }
