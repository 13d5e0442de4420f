//! Events on their way to the launcher. Sending never blocks the gateway, and no event is lost.
//!
//! Events of one poll are sent at the start of the next. To wake a sleeping launcher takes longer than a new client's
//! packet needs to reach its function, and the launcher can wait. While clients of a burst are deferred, their events
//! are held until the burst is over, or until there may be no room for the events of another poll. Events that find the
//! channel full are held further.
//!
//! While events are held, the gateway does nothing that would cause more: it reads no commands, binds no instance and
//! releases none. So at most the events of two polls are held. That number is known beforehand, and the outbox has this
//! capacity.
//!
//! The channel takes a lock only to wake a sleeping launcher: per event, never per packet.

use std::collections::VecDeque;

use crossbeam_channel::{Sender, TrySendError};

use crate::messages::Event;

pub(crate) struct Outbox {
    sender: Sender<Event>,
    kept: VecDeque<Event>,
    events_per_poll_max: usize,
}

impl Outbox {
    pub(crate) fn new(sender: Sender<Event>, events_per_poll_max: usize) -> Self {
        Self { sender, kept: VecDeque::with_capacity(2 * events_per_poll_max), events_per_poll_max }
    }

    /// Returns whether there is room for all events of another poll.
    pub(crate) fn has_room_for_poll(&self) -> bool {
        self.kept.len() <= self.events_per_poll_max
    }

    /// Returns whether every event so far has been sent.
    pub(crate) fn is_clear(&self) -> bool {
        self.kept.is_empty()
    }

    /// Accepts an event, to be sent by the next [`Outbox::flush`].
    pub(crate) fn send(&mut self, event: Event) {
        debug_assert!(self.kept.len() < 2 * self.events_per_poll_max, "a poll caused more events than the maximum");
        self.kept.push_back(event);
    }

    /// Sends held events as long as the channel has room. Returns how many were sent.
    pub(crate) fn flush(&mut self) -> usize {
        let mut sent = 0;
        while let Some(event) = self.kept.pop_front() {
            match self.sender.try_send(event) {
                // Without a launcher, the event has no receiver and is discarded.
                Ok(()) | Err(TrySendError::Disconnected(_)) => sent += 1,
                Err(TrySendError::Full(event)) => {
                    self.kept.push_front(event);
                    break;
                }
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::InstanceId;

    fn event(number: u64) -> Event {
        Event::Unbound { instance: InstanceId(number) }
    }

    #[test]
    fn events_keep_their_order_when_the_channel_is_full_for_a_while() {
        let (sender, receiver) = crossbeam_channel::bounded(2);
        let mut outbox = Outbox::new(sender, 8);
        for number in 0..5 {
            outbox.send(event(number));
        }
        outbox.flush();
        assert!(!outbox.is_clear());
        let mut received = Vec::new();
        while received.len() < 5 {
            received.extend(receiver.try_iter());
            outbox.flush();
        }
        assert_eq!(received, (0..5).map(event).collect::<Vec<_>>());
        assert!(outbox.is_clear());
    }

    #[test]
    fn nothing_is_sent_before_the_next_poll() {
        let (sender, receiver) = crossbeam_channel::bounded(2);
        let mut outbox = Outbox::new(sender, 8);
        outbox.send(event(1));
        assert!(receiver.is_empty());
        assert_eq!((outbox.flush(), receiver.len()), (1, 1));
    }

    #[test]
    fn there_is_room_for_another_poll_as_long_as_no_more_is_kept_than_one_causes() {
        let (sender, _receiver) = crossbeam_channel::bounded(16);
        let mut outbox = Outbox::new(sender, 3);
        let rooms: Vec<bool> = (0..6)
            .map(|number| {
                outbox.send(event(number));
                outbox.has_room_for_poll()
            })
            .collect();
        assert_eq!(rooms, [true, true, true, false, false, false]);
        outbox.flush();
        assert!(outbox.has_room_for_poll());
    }

    #[test]
    fn nothing_is_kept_for_a_launcher_that_has_gone() {
        let (sender, _) = crossbeam_channel::bounded(1);
        let mut outbox = Outbox::new(sender, 1);
        for number in 0..5 {
            outbox.send(event(number));
            outbox.flush();
        }
        assert!(outbox.is_clear());
    }
}
