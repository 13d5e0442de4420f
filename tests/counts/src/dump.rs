//! What callgrind writes down: a file for each scene, of which the name and the sums matter, and the cost of each function for its owner.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;

/// What one scene has cost, all repetitions together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) instructions: u64,
    /// Lines of 64 bytes that were not in the first-level data cache.
    pub(crate) l1_misses: u64,
    /// Those that were in no cache.
    pub(crate) ll_misses: u64,
    /// Instructions of the guest's code, and of the engine's.
    pub(crate) guest: u64,
    pub(crate) engine: u64,
}

/// All dumps of a folder, by the names of their scenes.
pub(crate) fn read_all(folder: &Path) -> anyhow::Result<BTreeMap<String, Counted>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).context("the folder of dumps")? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("dump")) {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            all.extend(read(&text));
        }
    }
    Ok(all)
}

/// The name and the counts of a dump; none if no request wrote it.
fn read(text: &str) -> Option<(String, Counted)> {
    let name = text.lines().find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "))?;
    let events: Vec<&str> = text.lines().find_map(|line| line.strip_prefix("events: "))?.split_whitespace().collect();
    let totals = text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
    let totals: Vec<u64> = totals.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect();
    let total = |event: &str| events.iter().position(|it| *it == event).and_then(|at| totals.get(at)).copied();
    let mut counted = Counted {
        instructions: total("Ir")?,
        l1_misses: total("D1mr").unwrap_or(0) + total("D1mw").unwrap_or(0),
        ll_misses: total("DLmr").unwrap_or(0) + total("DLmw").unwrap_or(0),
        ..Counted::default()
    };
    for (function, instructions) in own_costs(text) {
        match owner(&function) {
            Owner::Guest => counted.guest += instructions,
            Owner::Engine => counted.engine += instructions,
            Owner::Pinion => {}
        }
    }
    Some((name.to_owned(), counted))
}

enum Owner {
    Guest,
    Engine,
    Pinion,
}

/// Code without a name is the guests', as it lies in no file that has names.
fn owner(function: &str) -> Owner {
    if function.starts_with("0x") || function == "???" {
        Owner::Guest
    } else if function.contains("wasmtime") {
        Owner::Engine
    } else {
        Owner::Pinion
    }
}

/// Each function with the instructions that are its own.
fn own_costs(text: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut costs: BTreeMap<String, u64> = BTreeMap::new();
    let mut function = String::new();
    let mut is_call = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("fn=") {
            function = full_name(rest, &mut names);
        } else if let Some(rest) = line.strip_prefix("cfn=") {
            // The name is told where it first occurs.
            full_name(rest, &mut names);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // The line after `calls=` is what the called function cost.
            if !std::mem::take(&mut is_call)
                && let Some(instructions) = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok())
            {
                *costs.entry(function.clone()).or_default() += instructions;
            }
        }
    }
    costs
}

/// `(12) name` the first time, `(12)` from then on.
fn full_name(text: &str, names: &mut BTreeMap<String, String>) -> String {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    if !name.is_empty() {
        names.insert(number.to_owned(), name.to_owned());
    }
    names.get(number).cloned().unwrap_or_else(|| number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "version: 1\ndesc: Trigger: Client Request: a scene\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nob=(1) /a\n\
        fl=(1) a.rs\nfn=(1) pinion::turn\n12 5 1 1\n+3 2\ncfn=(2) wasmtime::resume\ncalls=1 7\n12 100 3\nfn=(2)\n7 90 9\n\
        cfn=(3) 0x0000000004abc\ncalls=1 0\n7 10\nfn=(3)\n0 10\ntotals: 107 4 2 0 3 1 0 2 1\n";

    #[test]
    fn a_dump_is_read_with_what_is_the_guests_and_the_engines() {
        let (name, counted) = read(DUMP).unwrap();
        assert_eq!(name, "a scene");
        assert_eq!(counted, Counted { instructions: 107, l1_misses: 4, ll_misses: 3, guest: 10, engine: 90 });
    }

    #[test]
    fn a_dump_that_no_request_wrote_is_none() {
        assert_eq!(read(&DUMP.replace("Client Request: a scene", "Program termination")), None);
    }
}
