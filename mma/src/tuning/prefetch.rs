//! Prefetch hints: what will be read or written soon. With thousands of FWPs and a packet each, no memory of an FWP is
//! in a cache at its turn. So it is prefetched during the turns of others.
#![allow(unsafe_code)] // Owns the two instructions, which touch nothing.

/// Bytes fetched at a time: a cache line.
pub const LINE: usize = 64;

/// Prefetches the cache line at `place`, where the processor supports it. Any address is allowed: nothing is accessed.
#[inline(always)]
pub fn to_read<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults, wherever the pointer points.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction takes any address without accessing it, and changes no register or flag.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = place;
}

/// Prefetches all cache lines of a value.
#[inline(always)]
pub fn all_to_read<T>(value: &T) {
    lines(value).for_each(to_read);
}

/// Prefetches all cache lines of a value that is about to be written and that another core may hold.
#[inline(always)]
pub fn all_to_write<T>(value: &T) {
    lines(value).for_each(to_write);
}

#[inline(always)]
fn lines<T>(value: &T) -> impl Iterator<Item = *const u8> {
    let start = (&raw const *value).cast::<u8>();
    (0..size_of::<T>()).step_by(LINE).map(move |at| start.wrapping_add(at))
}

/// Prefetches the cache line at `place`, which is about to be written and which another core may hold.
#[inline(always)]
pub fn to_write<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults, wherever the pointer points. Processors that do not know it take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
