//! A ring between exactly two threads: single producer, single consumer, bounded, lock-free.
//!
//! Each side keeps its own index and a cached copy of the other's. It publishes its index on a cache line that it alone
//! writes. A side reads the other's line only if its cached copy says full or empty. Operations never block and never
//! allocate.
//!
//! Every write to a published index costs the other side a transfer of its line, so batches publish once:
//! [`Producer::stage`] any number of entries, then [`Producer::publish`]; [`Consumer::take`] any number, then
//! [`Consumer::release`]. [`Producer::push`] and [`Consumer::pop`] combine both for single entries. For thousands of
//! rings the two lines are too many: see `phased`.
#![allow(unsafe_code)] // Owns the uninitialised storage that the two indices guard.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

type Entry<T> = UnsafeCell<MaybeUninit<T>>;

struct Shared<T> {
    /// Next index to be read; written by the consumer alone.
    head: CachePadded<AtomicUsize>,
    /// Next index to be written; written by the producer alone.
    tail: CachePadded<AtomicUsize>,
    entries: Box<[Entry<T>]>,
}

// SAFETY: an entry is touched only by the producer while its index is in `tail..head + capacity` and only by the
// consumer while it is in `head..tail`; the indices are handed over with release and acquire.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: owns its entries.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        while head != tail {
            let entry = &self.entries[head & (self.entries.len() - 1)];
            // SAFETY: entries in `head..tail` were written and not read; both sides are gone.
            drop(entry.with(|entry| unsafe { (*entry).assume_init_read() }));
            head = head.wrapping_add(1);
        }
    }
}

/// Pointer to the entries: each side reaches them without loading from the shared part.
struct Entries<T> {
    first: NonNull<Entry<T>>,
    mask: usize,
}

// SAFETY: a pointer into `Shared`, which each side keeps alive; `Shared` says which side may access an entry.
unsafe impl<T: Send> Send for Entries<T> {}

impl<T> Entries<T> {
    fn of(entries: &[Entry<T>]) -> Self {
        Self { first: NonNull::from(entries).cast(), mask: entries.len() - 1 }
    }

    fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// # Safety
    /// The ring exists.
    #[inline(always)]
    unsafe fn entry(&self, index: usize) -> &Entry<T> {
        // SAFETY: the mask keeps the index within the entries, which exist, as the caller promises.
        unsafe { self.first.add(index & self.mask).as_ref() }
    }
}

impl<T> Clone for Entries<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Entries<T> {}

/// The writing side.
pub struct Producer<T> {
    places: Entries<T>,
    /// Next index to be written; entries between the published index and this one are staged.
    tail: usize,
    head_cached: usize,
    shared: Arc<Shared<T>>,
}

/// The reading side.
pub struct Consumer<T> {
    places: Entries<T>,
    /// Next index to be read; entries between the published index and this one are taken.
    head: usize,
    tail_cached: usize,
    shared: Arc<Shared<T>>,
}

/// A look from outside at how many entries the ring has.
pub struct View<T> {
    shared: Arc<Shared<T>>,
}

impl<T> View<T> {
    /// Returns how many entries were published and not released, about now.
    #[must_use]
    pub fn len(&self) -> usize {
        // In this order, as the first one never passes the second.
        let head = self.shared.head.load(Ordering::Acquire);
        self.shared.tail.load(Ordering::Acquire).wrapping_sub(head).min(self.shared.entries.len())
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes a ring for `capacity` entries, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is zero.
#[must_use]
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs room for at least one entry");
    let entries = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        entries,
    });
    let places = || Entries::of(&shared.entries);
    (
        Producer { places: places(), tail: 0, head_cached: 0, shared: Arc::clone(&shared) },
        Consumer { places: places(), head: 0, tail_cached: 0, shared: Arc::clone(&shared) },
    )
}

impl<T> Producer<T> {
    /// Returns the number of entries that the ring has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Returns a view for other threads.
    #[must_use]
    pub fn view(&self) -> View<T> {
        View { shared: Arc::clone(&self.shared) }
    }

    /// Returns the number of entries that can be staged now. Reads the consumer's index only if fewer than `wanted`
    /// seem free.
    #[inline]
    pub fn room(&mut self, wanted: usize) -> usize {
        let capacity = self.places.capacity();
        let mut room = capacity - self.tail.wrapping_sub(self.head_cached);
        if room < wanted {
            self.head_cached = self.shared.head.load(Ordering::Acquire);
            room = capacity - self.tail.wrapping_sub(self.head_cached);
        }
        room
    }

    /// Appends one entry. The consumer sees it after [`Producer::publish`].
    ///
    /// # Errors
    /// The value, if there was no room for it.
    #[inline]
    pub fn stage(&mut self, value: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(value);
        }
        // SAFETY: the ring exists as long as a side does; there is room, so the consumer is done with this entry.
        unsafe { self.places.entry(self.tail).with_mut(|entry| _ = (*entry).write(value)) };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Starts to stage many entries in a row, with the index in a register.
    #[inline]
    pub fn staging(&mut self) -> Staging<'_, T> {
        let end = self.head_cached.wrapping_add(self.places.capacity());
        Staging { places: self.places, next: self.tail, end, producer: self }
    }

    /// Publishes all staged entries to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        self.shared.tail.store(self.tail, Ordering::Release);
    }

    /// Appends one entry and publishes it.
    ///
    /// # Errors
    /// The value, if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        self.stage(value)?;
        self.publish();
        Ok(())
    }

    /// Appends as many entries as there is room for and publishes them together; returns how many. The others stay in
    /// the iterator.
    pub fn push_batch(&mut self, values: &mut impl ExactSizeIterator<Item = T>) -> usize {
        let count = self.room(values.len()).min(values.len());
        for value in values.by_ref().take(count) {
            let staged = self.stage(value);
            debug_assert!(staged.is_ok(), "there is room for all of them");
        }
        self.publish();
        count
    }
}

/// A row of entries being staged.
pub struct Staging<'r, T> {
    places: Entries<T>,
    next: usize,
    end: usize,
    producer: &'r mut Producer<T>,
}

impl<T> Staging<'_, T> {
    /// Appends one entry: see [`Producer::stage`].
    ///
    /// # Errors
    /// The value, if there was no room for it.
    #[inline(always)]
    pub fn stage(&mut self, value: T) -> Result<(), T> {
        if self.next == self.end && !self.has_more_room() {
            return Err(value);
        }
        // SAFETY: the ring exists as long as its producer, which is borrowed; there is room, so the consumer is done with
        // this entry.
        unsafe { self.places.entry(self.next).with_mut(|entry| _ = (*entry).write(value)) };
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Returns how many entries the consumer has not taken, staged ones among them. Reads its index.
    pub fn waiting(&mut self) -> usize {
        self.has_more_room();
        self.next.wrapping_sub(self.producer.head_cached)
    }

    /// Reads the consumer's index again. In a function of its own: staging needs it once in a ring's length at most, unless
    /// the ring is full.
    #[cold]
    fn has_more_room(&mut self) -> bool {
        self.producer.head_cached = self.producer.shared.head.load(Ordering::Acquire);
        self.end = self.producer.head_cached.wrapping_add(self.places.capacity());
        self.next != self.end
    }
}

impl<T> Drop for Staging<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.producer.tail = self.next;
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Entries that were staged and never published are dropped with the ring.
        self.publish();
    }
}

impl<T> Consumer<T> {
    /// Returns the number of entries that the ring has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Returns the number of entries that can be taken now. Reads the producer's index only if fewer than `wanted` seem
    /// there.
    #[inline]
    pub fn ready(&mut self, wanted: usize) -> usize {
        let mut ready = self.tail_cached.wrapping_sub(self.head);
        if ready < wanted {
            self.tail_cached = self.shared.tail.load(Ordering::Acquire);
            ready = self.tail_cached.wrapping_sub(self.head);
        }
        ready
    }

    /// Returns the entry `ahead` positions after the oldest one, if it is known to be there.
    #[inline]
    #[must_use]
    pub fn peek(&self, ahead: usize) -> Option<&T> {
        if self.tail_cached.wrapping_sub(self.head) <= ahead {
            return None;
        }
        // SAFETY: published, so the producer leaves it alone, and not taken while `self` is borrowed.
        Some(unsafe { self.places.entry(self.head.wrapping_add(ahead)).with(|entry| (*entry).assume_init_ref()) })
    }

    /// Takes the oldest entry. The producer can reuse its place after [`Consumer::release`].
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: the ring exists as long as a side does; the producer has published this entry and will not touch it
        // before the published `head` has passed it. It is read once, as `head` moves on.
        let value = unsafe { self.places.entry(self.head).with(|entry| (*entry).assume_init_read()) };
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// Starts to take up to `max` entries, in order, with the index in a register.
    #[inline]
    pub fn taking(&mut self, max: usize) -> Taking<'_, T> {
        let count = self.ready(max).min(max);
        let (next, end) = (self.head, self.head.wrapping_add(count));
        // Corrected when the row is dropped. If the row is leaked, none of its entries can be read a second time.
        self.head = end;
        Taking { places: self.places, next, end, consumer: self }
    }

    /// Releases the places of all entries taken, for the producer to reuse.
    #[inline]
    pub fn release(&mut self) {
        self.shared.head.store(self.head, Ordering::Release);
    }

    /// Takes the oldest entry and releases its place.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.take()?;
        self.release();
        Some(value)
    }

    /// Takes up to `max` of the oldest entries and releases their places together; returns how many.
    #[inline]
    pub fn pop_batch(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = self.ready(max).min(max);
        for _ in 0..count {
            if let Some(value) = self.take() {
                take(value);
            }
        }
        self.release();
        count
    }
}

/// A row of entries being taken.
pub struct Taking<'r, T> {
    places: Entries<T>,
    next: usize,
    end: usize,
    consumer: &'r mut Consumer<T>,
}

impl<T> Taking<'_, T> {
    /// Returns the entry `ahead` positions after the next one, if the row is that long.
    #[inline(always)]
    pub fn peek(&self, ahead: usize) -> Option<&T> {
        if self.end.wrapping_sub(self.next) <= ahead {
            return None;
        }
        // SAFETY: published, so the producer leaves it alone, and not taken while `self` is borrowed.
        Some(unsafe { self.places.entry(self.next.wrapping_add(ahead)).with(|entry| (*entry).assume_init_ref()) })
    }

    /// Takes the next entry.
    #[inline(always)]
    pub fn take(&mut self) -> Option<T> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: the ring exists as long as its consumer, which is borrowed; published, and read once, as `next` moves on.
        let value = unsafe { self.places.entry(self.next).with(|entry| (*entry).assume_init_read()) };
        self.next = self.next.wrapping_add(1);
        Some(value)
    }
}

impl<T> Drop for Taking<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.head = self.next;
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Taken entries must not be dropped again with the ring.
        self.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
