//! Clocks.

/// CLOCK_MONOTONIC, microseconds.
pub fn monotonic_us() -> u64 {
    monotonic_ns() / 1000
}

/// CLOCK_MONOTONIC, nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Wall clock, microseconds since 1970 UTC; may jump.
pub fn realtime_us() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1000
}

/// CPU time of this process, all threads, microseconds; without its children.
pub fn own_cpu_us() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) / 1000
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid place for the result; these clocks always exist, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
