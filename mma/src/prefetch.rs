//! Hints to the processor: what will be read or written soon. With thousands of FWPs and a packet each, nothing of an FWP is
//! in a cache when its turn comes, so what it needs is asked for while others have theirs.
#![allow(unsafe_code)] // Owns the two instructions, which touch nothing.

/// Bytes that are asked for at a time.
pub const LINE: usize = 64;

/// Has the processor bring the cache line at `place` nearer, if it can. Any address will do: nothing is read.
#[inline(always)]
pub fn to_read<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults, wherever the pointer points.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Has all lines of a value brought nearer.
#[inline(always)]
pub fn all_to_read<T>(value: &T) {
    lines(value).for_each(to_read);
}

/// The same for a value that is about to be written, which another core may hold.
#[inline(always)]
pub fn all_to_write<T>(value: &T) {
    lines(value).for_each(to_write);
}

#[inline(always)]
fn lines<T>(value: &T) -> impl Iterator<Item = *const u8> {
    let start = (&raw const *value).cast::<u8>();
    (0..size_of::<T>()).step_by(LINE).map(move |at| start.wrapping_add(at))
}

/// As [`to_read`], for a line that is about to be written, which another core may hold.
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
