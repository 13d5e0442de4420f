//! One poll of the gateway: its steps, in their order.

use super::{Gateway, PAUSE_NS, SWEEP_INTERVAL_MAX_NS, UNDIVIDED_NS};
use crate::flows::pending::FRAMES_PER_KEY;

impl Gateway {
    /// Does the work that is due. Returns how many items of work that were; 0 means that the gateway was idle.
    pub fn poll(&mut self) -> usize {
        let now_ns = self.stopwatch.elapsed_ns();
        self.poll_at(now_ns)
    }

    /// [`Gateway::poll`] with the caller's clock, which starts at 0 and never goes back.
    ///
    /// The steps, in this order. Each is bounded; none allocates, locks, or blocks.
    ///
    /// 1. Events that the launcher is waiting for.
    /// 2. Buffers that the MMAs have used, and frames that have waited too long for an instance: both give room.
    /// 3. Net-Out: frames to transmit.
    /// 4. Net-In: received frames. Late, so that little work lies between a frame's arrival and the MMA, which may be this thread's next role.
    /// 5. Commands of the launcher, unless a new client was served; after a pause, or if many frames were received, before these are
    ///    assigned. Calls of programs.
    /// 6. The hand-over to the MMAs.
    /// 7. Work that can wait: idle instances and link states.
    /// 8. The gateway's own replies, and reports.
    pub fn poll_at(&mut self, now_ns: u64) -> usize {
        let batch = self.burst * self.ports.len();
        let was_idle = now_ns.saturating_sub(self.polled_ns) > PAUSE_NS;
        self.polled_ns = now_ns;
        let mut done = self.send_events(was_idle);
        done += self.handover.take_spent(2 * batch, |buffer| self.bin.take(buffer));
        done += self.expire_pending(now_ns);
        // More than comes in with a burst: calls and frames that have waited are answered, too.
        done += self.net_out(2 * batch, now_ns);
        self.handover.lend_empties(&mut *self.bin.pool);
        done += self.receive_and_follow(now_ns, was_idle);
        done += self.take_calls(now_ns);
        self.handover.hand_over();
        self.handover.ring();
        if done > 0 && was_idle {
            self.quiet_until_ns = now_ns + UNDIVIDED_NS;
        }
        done += self.keep_house(now_ns, done == 0);
        done += self.end_overdue_calls(now_ns);
        self.reply_and_report();
        if done == 0 {
            self.assigner.announce_later();
        }
        done
    }

    /// Sends events to the launcher. To send them may require to wake it, which takes longer than to serve several clients: while clients of
    /// the same burst wait, they are kept.
    #[inline(always)]
    fn send_events(&mut self, was_idle: bool) -> usize {
        let keeps_events = self.has_deferred_clients() && self.assigner.can_keep_events();
        let done = if keeps_events { 0 } else { self.assigner.begin_poll() };
        if was_idle {
            self.assigner.forget_notes();
        }
        done
    }

    /// Takes in the ports' frames, each port first in its turn, and then follows the launcher's commands. A client that was just given an
    /// instance does not wait for commands: as a rule they are read in polls that bind none.
    ///
    /// After a pause the commands come first: a frame must not go to an instance that has ended meanwhile. They also come before a burst that
    /// a client might have no place for: see [`Gateway::follow_before`].
    #[inline(always)]
    fn receive_and_follow(&mut self, now_ns: u64, was_idle: bool) -> usize {
        self.has_followed = was_idle && !self.commands.is_empty();
        let mut done = if self.has_followed { self.follow_at_once(now_ns) } else { 0 };
        let before = self.assigner.activations();
        for turn in 0..self.ports.len() {
            done += self.net_in((self.first_port + turn) % self.ports.len(), now_ns);
        }
        self.first_port = (self.first_port + 1) % self.ports.len();
        if !self.has_followed && self.assigner.activations() == before && !self.has_deferred_clients() {
            done += self.apply_commands(now_ns);
        }
        done
    }

    /// Follows the launcher's commands between receiving a burst and assigning it to instances, once a poll, if a client without an instance
    /// might have no place for its frames. The kernel may have preempted this thread just before: then frames have come, and an instance
    /// was made for them, while the thread was in this poll.
    #[inline(always)]
    pub(super) fn follow_before(&mut self, received: usize, now_ns: u64) {
        let may_drop = received > 0 && received + self.pending.frames() > FRAMES_PER_KEY;
        if may_drop && !self.has_followed && !self.commands.is_empty() {
            self.has_followed = true;
            self.follow_at_once(now_ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_at_once(&mut self, now_ns: u64) -> usize {
        self.apply_commands(now_ns)
    }

    /// Ends idle instances and polls link states, when the gateway is idle or that is overdue. As long as it can wait, it does not delay a
    /// client that has just arrived.
    #[inline(always)]
    fn keep_house(&mut self, now_ns: u64, is_idle: bool) -> usize {
        let is_overdue = now_ns.saturating_sub(self.swept_ns) >= SWEEP_INTERVAL_MAX_NS;
        if now_ns < self.quiet_until_ns || !(is_idle || is_overdue) {
            return 0;
        }
        let done = self.sweep(now_ns);
        self.poll_link_state(now_ns);
        done
    }

    /// Hands answers to callers, transmits the gateway's replies to ARP and neighbour discovery, returns buffers, and publishes the counts.
    #[inline(always)]
    fn reply_and_report(&mut self) {
        if let Some(port) = &mut self.invoke {
            port.hand_over();
        }
        for state in &mut self.ports {
            state.transmit(&mut *self.bin.pool);
        }
        self.bin.empty();
        self.report();
    }
}
