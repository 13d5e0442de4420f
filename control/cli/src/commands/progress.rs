//! Shows what the node builds while a command waits for it: one line on a terminal, which is updated, and cleared at
//! the end. It uses a connection of its own. If that fails, the command continues without progress.

use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use pinion_control::Client;
use pinion_control::client::NodeAddress;
use pinion_control::node::BuildStatus;

use crate::output::printable;

/// The interval between requests to the node.
const INTERVAL: Duration = Duration::from_millis(200);
/// The maximum number of builds that are named; further ones are counted.
const BUILDS_NAMED: usize = 2;
/// Returns to the start of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Runs the work. If standard error is a terminal, shows there what the node builds meanwhile.
pub(super) async fn shown_during<T>(address: &NodeAddress, work: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return work.await;
    }
    let watching = tokio::spawn(watch(address.clone()));
    let done = work.await;
    watching.abort();
    // The watcher writes its line completely or not at all, so this does not block for long.
    let _ = watching.await;
    show("");
    done
}

async fn watch(address: NodeAddress) {
    let Ok(mut client) = Client::connect_to(&address).await else { return };
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Ok(report) = client.status().await else { return };
        show(&line(&report.node.builds));
    }
}

fn show(line: &str) {
    // An error here means that the terminal is gone, which then needs no progress.
    let _ = write!(io::stderr().lock(), "{CLEAR}{line}");
}

/// Formats it as `compiling echo/0 icmp-echo (1.4s), 2 more`; empty while nothing is built.
fn line(builds: &[BuildStatus]) -> String {
    let named = builds.iter().take(BUILDS_NAMED);
    let named = named
        .map(|build| format!("{} {} ({:.1}s)", build.phase, printable(&build.module), build.age_ms as f64 / 1000.0));
    let more = builds.len().saturating_sub(BUILDS_NAMED);
    named.chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_control::node::BuildPhase;

    #[test]
    fn a_line_names_the_oldest_builds_and_counts_the_rest() {
        let build = |module: &str, phase| BuildStatus {
            tenant: "demo".parse().unwrap(),
            module: module.into(),
            phase,
            age_ms: 1449,
        };
        let mut builds = vec![build("echo/0 m", BuildPhase::Compiling)];
        assert_eq!(line(&[]), "");
        assert_eq!(line(&builds), "compiling echo/0 m (1.4s)");
        builds.extend([build("a\u{1b}", BuildPhase::Queued), build("b", BuildPhase::Queued)]);
        assert_eq!(line(&builds), "compiling echo/0 m (1.4s), queued a\\u{1b} (1.4s), 1 more");
    }
}
