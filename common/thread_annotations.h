// Names for clang's thread-safety attributes; nothing under other compilers.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html explains each.
#pragma once

#if defined(__clang__)
#define SLACKLINE_ATTRIBUTE(x) __attribute__((x))
#else
#define SLACKLINE_ATTRIBUTE(x)
#endif

// On a type: it can be held. On a type that holds one for its scope.
#define SLACKLINE_CAPABILITY(name) SLACKLINE_ATTRIBUTE(capability(name))
#define SLACKLINE_SCOPED_CAPABILITY SLACKLINE_ATTRIBUTE(scoped_lockable)
// On a member: touched only with the mutex held; through a pointer: what it points to is.
#define SLACKLINE_GUARDED_BY(mutex) SLACKLINE_ATTRIBUTE(guarded_by(mutex))
#define SLACKLINE_PT_GUARDED_BY(mutex) SLACKLINE_ATTRIBUTE(pt_guarded_by(mutex))
// On a function: the caller holds the mutex; the caller must not hold it.
#define SLACKLINE_REQUIRES(...) SLACKLINE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define SLACKLINE_EXCLUDES(...) SLACKLINE_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// On a function that takes or gives back the mutex.
#define SLACKLINE_ACQUIRE(...) SLACKLINE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define SLACKLINE_RELEASE(...) SLACKLINE_ATTRIBUTE(release_capability(__VA_ARGS__))
