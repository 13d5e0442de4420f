//! `pinion logs`: shows the log lines of functions.

use std::io;

use pinion_control::Client;
use pinion_control::client::Follow;
use pinion_control::journal::{LogFilter, LogLine};

use crate::args::Format;
use crate::output::{self, printable};

pub(super) async fn run(client: &mut Client, filter: LogFilter, follow: Follow, format: Format) -> anyhow::Result<()> {
    // An interrupt is the normal end of --follow, and not a failure.
    let interrupted = async {
        match follow {
            Follow::Yes => tokio::signal::ctrl_c().await,
            Follow::No => std::future::pending::<io::Result<()>>().await,
        }
    };
    tokio::select! {
        shown = show(client, filter, follow, format) => shown,
        done = interrupted => Ok(done?),
    }
}

/// Prints lines until no more arrive.
pub(super) async fn show(client: &mut Client, filter: LogFilter, follow: Follow, format: Format) -> anyhow::Result<()> {
    let names_tenant = filter.tenant.is_none();
    let mut lines = client.logs(filter, follow).await?;
    while let Some(line) = lines.next().await? {
        match format {
            Format::Json => output::json_line(&line)?,
            Format::Table => output::print(&text(&line, names_tenant))?,
        }
    }
    Ok(())
}

/// Formats it as `2026-01-31T12:00:00.000Z info  echo/0[17] hello`, after a line about lost lines if there are any.
fn text(line: &LogLine, names_tenant: bool) -> String {
    let time = output::time_of_day(line.time_unix_ms);
    let origin = &line.origin;
    let tenant = if names_tenant { format!("{}/", origin.tenant) } else { String::new() };
    let said = output::indented(&line.text);
    let lost = match line.lost {
        0 => String::new(),
        1 => format!("{time} warn  {}: 1 line was lost here\n", origin.tenant),
        lost => format!("{time} warn  {}: {lost} lines were lost here\n", origin.tenant),
    };
    format!(
        "{lost}{time} {:5} {tenant}{}/{}[{}] {said}",
        line.level,
        origin.chain,
        origin.stage,
        printable(&origin.fwp)
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pinion_control::journal::{Level, Origin};

    use super::*;

    fn line(text: &str, lost: u64) -> LogLine {
        let origin = Origin {
            tenant: "demo".parse().unwrap(),
            chain: "echo".parse().unwrap(),
            stage: 1,
            module: "m".parse().unwrap(),
            fwp: "17".into(),
        };
        let time_unix_ms = 1_769_860_800_123;
        LogLine { time_unix_ms, level: Level::Warn, origin: Arc::new(origin), text: text.into(), lost }
    }

    #[test]
    fn a_line_has_its_time_level_origin_and_text() {
        assert_eq!(text(&line("hello", 0), false), "2026-01-31T12:00:00.123Z warn  echo/1[17] hello");
        assert_eq!(
            text(&line("a\n b\u{1b}", 0), true),
            "2026-01-31T12:00:00.123Z warn  demo/echo/1[17] a\n     b\\u{1b}"
        );
    }

    #[test]
    fn lost_lines_are_a_line_of_their_own() {
        let shown = text(&line("hello", 12), false);
        assert_eq!(shown.lines().next(), Some("2026-01-31T12:00:00.123Z warn  demo: 12 lines were lost here"));
        assert_eq!(shown.lines().count(), 2);
    }
}
