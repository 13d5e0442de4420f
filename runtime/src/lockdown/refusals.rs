//! Reports of system calls that threads were refused: in the log as they come, and in the status.

use std::collections::HashMap;
use std::time::Duration;

use pinion_confinement::refused::{RefusedCall, refused};
use pinion_confinement::system_calls;

use super::thread_role::ThreadRole;

/// How often is looked for new ones.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs what is refused, for ever.
pub async fn log() {
    let mut logged: HashMap<(usize, usize), u32> = HashMap::new();
    loop {
        for call in refused() {
            let before = logged.insert((call.kind, call.number), call.count).unwrap_or(0);
            if call.count != before {
                tracing::error!(count = call.count - before, "{}", sentence(&call));
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Returns a warning for each kind of thread and call.
pub(super) fn warnings() -> Vec<String> {
    let warning = |call: &RefusedCall| {
        format!(
            "{} ({} times): either a sandbox is broken, or a library changed: save the log and ask for help",
            sentence(call),
            call.count
        )
    };
    refused().iter().map(warning).collect()
}

fn sentence(call: &RefusedCall) -> String {
    let role = ThreadRole::ALL.get(call.kind).map_or_else(|| call.kind.to_string(), ToString::to_string);
    format!("a thread of the role {role} was refused the system call {}", system_calls::name(call.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_role_and_call() {
        let call = RefusedCall { kind: ThreadRole::DataPath as usize, number: libc::SYS_execve as usize, count: 1 };
        assert_eq!(sentence(&call), "a thread of the role data path was refused the system call execve");
    }
}
