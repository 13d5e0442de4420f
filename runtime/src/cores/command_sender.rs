//! Commands from the launcher, and from offload threads, to the roles: one bounded channel per role, and the doorbell of the thread that reads it.

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::notify::doorbell::Doorbell;

/// Unread commands to one role.
const COMMANDS: usize = 1024;

/// The sending end.
pub struct CommandSender<T> {
    commands: Sender<T>,
    bell: Doorbell,
}

impl<T> Clone for CommandSender<T> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), bell: self.bell.clone() }
    }
}

/// Creates a channel to a role; its thread sleeps at `bell`.
#[must_use]
pub fn line<T>(bell: &Doorbell) -> (CommandSender<T>, Receiver<T>) {
    let (tx, rx) = crossbeam_channel::bounded(COMMANDS);
    (CommandSender { commands: tx, bell: bell.clone() }, rx)
}

impl<T> CommandSender<T> {
    /// Sends a command, and wakes the role. Blocks while the channel is full. That ends, because a role reads on as long as the launcher's
    /// channels have room for its events, and these are made large enough. A command to a role that has stopped is dropped: the node is
    /// stopping then.
    pub fn command(&self, command: T) {
        let _ = self.commands.send(command);
        self.bell.ring();
    }

    /// Returns how many commands the role has not read yet.
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
