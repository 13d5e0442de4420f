//! Lines of command from the launcher to the roles: a bounded channel each, and the doorbell of the thread that reads it.

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::doorbell::Doorbell;

/// Commands under way to one role.
const COMMANDS: usize = 1024;

/// The commanding end.
pub struct Line<T> {
    commands: Sender<T>,
    bell: Doorbell,
}

/// Makes a line to a role whose thread sleeps at `bell`.
#[must_use]
pub fn line<T>(bell: &Doorbell) -> (Line<T>, Receiver<T>) {
    let (tx, rx) = crossbeam_channel::bounded(COMMANDS);
    (Line { commands: tx, bell: bell.clone() }, rx)
}

impl<T> Line<T> {
    /// Commands, and wakes the role. Waits while the line is full: roles read on as long as the launcher's channels have
    /// room for their events, for which these are made large enough. A role that is gone gets nothing; then the node is stopping.
    pub fn command(&self, command: T) {
        let _ = self.commands.send(command);
        self.bell.ring();
    }

    /// Commands that the role has not read yet.
    pub fn unread(&self) -> usize {
        self.commands.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_unread_until_the_role_takes_them() {
        let (line, reads) = line(&Doorbell::default());
        [1, 2, 3].iter().for_each(|&number| line.command(number));
        assert_eq!(line.unread(), 3);
        assert_eq!(reads.try_iter().collect::<Vec<i32>>(), [1, 2, 3]);
        assert_eq!(line.unread(), 0);
    }
}
