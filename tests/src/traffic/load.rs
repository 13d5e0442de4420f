//! `ab` and `wrk`, which ask a server of HTTP for much at once, and what they say of its answers.

use std::fs;

use crate::machine::process::run;
use crate::network::bed::{Bed, Client};

/// Asks a server by `ab` for so many answers, with further words. Returns how many it got a second.
///
/// # Panics
/// If one of them is missing, not whole, or no success.
#[track_caller]
pub fn ab(client: &Client, requests: u32, words: &[&str], url: &str) -> f64 {
    let requests = requests.to_string();
    let mut command = client.namespace.command("ab");
    let report = run(command.args(["-q", "-s", "10", "-n", &requests]).args(words).arg(url));
    let line = |name: &str| {
        let found = report.lines().find_map(|line| line.strip_prefix(name));
        let word = found.and_then(|rest| rest.split_whitespace().next());
        word.unwrap_or_else(|| panic!("ab says nothing of {name}: {report}"))
    };
    assert_eq!((line("Complete requests:"), line("Failed requests:")), (&*requests, "0"), "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");
    line("Requests per second:").parse().expect("a number")
}

/// A script with which `wrk` counts its answers. It prints one line: the answers, those that are not 200 with a body of the expected
/// length, and `wrk`'s own count of errors.
const WRK_SCRIPT: &str = r#"
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(words) answers, others, body_bytes = 0, 0, tonumber(words[1]) end
function response(status, headers, body)
  answers = answers + 1
  if status ~= 200 or #body ~= body_bytes then others = others + 1 end
end
function done(summary)
  local answers, others, errors = 0, 0, summary.errors
  for _, thread in ipairs(threads) do
    answers, others = answers + thread:get("answers"), others + thread:get("others")
  end
  print(string.format("COUNTED %d %d %d", answers, others,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

/// Returns the number before this text in a line of `wrk`'s summary, such as `  123 requests in 2.00s, 1.00MB read`.
fn wrk_counted(report: &str, what: &str) -> Option<u64> {
    report.lines().find_map(|line| line.split_once(what)?.0.trim().parse().ok())
}

/// Asks a server by `wrk` over so many connections for 2 s, once without a look at the answers and once with one. Returns how many answers
/// were looked at.
///
/// # Panics
/// If there were none, one was not 200 with a body of this length, or `wrk` has counted an error.
#[track_caller]
pub fn wrk(bed: &Bed, client: &Client, connections: u32, url: &str, body_bytes: usize) -> u64 {
    let script = bed.node.path("count.lua");
    fs::write(&script, WRK_SCRIPT).expect("the node's folder is writable");
    let script = script.to_str().expect("the folder's path is UTF-8");
    let connections = format!("--connections={connections}");
    // There is no promise about the answer's delay, as the machine may have other work.
    let words = ["--duration", "2s", "--timeout", "30s", "--threads", "2", &connections];
    let wrk = |more: &[&str]| run(client.namespace.command("wrk").args(words).args(more));
    let plain = wrk(&[url]);
    let looked_at = wrk(&["--script", script, url, "--", &body_bytes.to_string()]);
    for report in [&plain, &looked_at] {
        assert!(wrk_counted(report, " requests in ") > Some(0), "{report}");
        // `wrk` writes these lines only if there were such errors.
        assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    }
    let counted = looked_at.lines().find_map(|line| line.strip_prefix("COUNTED "));
    let counted = counted.unwrap_or_else(|| panic!("the script says nothing: {looked_at}")).split(' ');
    let counted: Vec<u64> = counted.map(|word| word.parse().expect("a number")).collect();
    assert!(counted[0] > 0 && counted[1..] == [0, 0], "answers, others, errors: {looked_at}");
    counted[0]
}
