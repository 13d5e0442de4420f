//! The page of results: one file, which loads nothing.

use std::fmt::Write;

use serde_json::Value;

use super::results::Results;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Pinion: what was measured</title>\n\
    <style>\n\
    body { font: 16px/1.5 sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; color: #222 }\n\
    table { border-collapse: collapse; margin: 1rem 0 }\n\
    th, td { border-bottom: 1px solid #ddd; padding: .3rem .8rem; text-align: left; vertical-align: top }\n\
    svg { margin: .5rem .5rem .5rem 0; max-width: 100% }\n\
    small { color: #666 }\n\
    </style>\n<h1>Pinion: what was measured</h1>\n";

/// Returns the page with these results.
pub(super) fn page(all: &[Results]) -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    for results in all {
        write!(page, "<h2>{}</h2>\n<p>{}</p>\n", escaped(results.title), escaped(results.origin))?;
        for plot in &results.plots {
            writeln!(page, "{}", plot.svg()?)?;
        }
        page.push_str("<table>\n<tr><th><th>Pinion<th>peers, in the same run<th>the paper's\n");
        for line in &results.lines {
            let cells = [&line.figure, &line.pinion, &line.peers, line.paper].map(escaped);
            writeln!(page, "<tr><td>{}", cells.join("<td>"))?;
        }
        writeln!(page, "</table>\n<p><small>{}</small></p>", escaped(&environment(&results.env)))?;
    }
    page.push_str("</html>\n");
    Ok(page)
}

/// Returns a line on the machine and the versions that were measured.
pub(super) fn environment(env: &Value) -> String {
    let text = |key: &str| env[key].as_str().unwrap_or("?").to_owned();
    format!(
        "{}, kernel {}, DPDK {}, Rust {}, {} at {}, cores {}",
        text("cpu_model"),
        text("kernel"),
        text("dpdk"),
        text("rustc").split(' ').next().unwrap_or("?"),
        text("pinion"),
        text("commit"),
        env["cores"]
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a < b & c > d"), "a &lt; b &amp; c &gt; d");
    }
}
