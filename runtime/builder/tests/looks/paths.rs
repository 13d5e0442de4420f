//! Finds the cost between two looks at the epoch on all paths through a module's functions, by following each path.

use std::collections::{HashMap, HashSet};

use wasmparser::{BlockType, Operator, Parser, Payload, TypeRef};

/// Steps after which no further paths through a function are followed: some functions have thousands of millions.
const STEPS_MAX: usize = 100_000;

/// Returns the costliest stretch without a look on any path through the module's first functions, by a cost table of its own.
pub(crate) fn costliest_stretch(wasm: &[u8], functions: u32) -> u32 {
    let (mut imports, mut costliest, mut seen) = (Vec::new(), 0, 0);
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.unwrap() {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.unwrap();
                    assert!(matches!(import.ty, TypeRef::Func(_)));
                    imports.push(import.name);
                }
            }
            Payload::CodeSectionEntry(body) if seen < functions => {
                seen += 1;
                let code: Vec<Operator<'_>> =
                    body.get_operators_reader().unwrap().into_iter().map(Result::unwrap).collect();
                costliest = costliest.max(Paths::of(&code, &imports).costliest());
            }
            _ => {}
        }
    }
    costliest
}

/// A function, and where its instructions lead.
struct Paths<'a> {
    code: &'a [Operator<'a>],
    imports: &'a [&'a str],
    /// The end of each `block`, `loop`, `if` and `else`, and for each `if` the code after its `else`.
    ends: HashMap<usize, usize>,
    elses: HashMap<usize, usize>,
    /// The frames that enclose each instruction.
    around: Vec<Vec<usize>>,
}

/// The state of one path.
#[derive(Clone, Default)]
struct Traveller {
    at: usize,
    spent: u32,
    /// How often each local was written on the path.
    writes: HashMap<u32, u32>,
    /// The pages that were accessed through a local.
    touched: HashSet<(u32, u32, u64)>,
    /// The loops that the path has entered at their heads; it enters none twice.
    loops: HashSet<usize>,
}

impl<'a> Paths<'a> {
    fn of(code: &'a [Operator<'a>], imports: &'a [&'a str]) -> Self {
        let (mut ends, mut elses, mut around, mut open) = (HashMap::new(), HashMap::new(), Vec::new(), Vec::new());
        for (at, operator) in code.iter().enumerate() {
            around.push(open.clone());
            match operator {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => open.push(at),
                Operator::Else => drop(elses.insert(*open.last().unwrap(), at + 1)),
                Operator::End => {
                    if let Some(start) = open.pop() {
                        ends.insert(start, at);
                    }
                }
                _ => {}
            }
        }
        Self { code, imports, ends, elses, around }
    }

    fn costliest(&self) -> u32 {
        let (mut travellers, mut costliest, mut steps) = (vec![Traveller::default()], 0, 0);
        while let Some(mut traveller) = travellers.pop()
            && steps < STEPS_MAX
        {
            loop {
                steps += 1;
                traveller.spent += self.cost(&mut traveller);
                costliest = costliest.max(traveller.spent);
                let mut next = self.next(&mut traveller).into_iter();
                let Some(first) = next.next() else { break };
                travellers.extend(next.map(|at| Traveller { at, ..traveller.clone() }));
                traveller.at = first;
            }
        }
        costliest
    }

    fn cost(&self, traveller: &mut Traveller) -> u32 {
        let before = |back: usize| self.before(traveller.at).nth(back - 1);
        let by_local = |back: usize| match before(back) {
            Some(Operator::LocalGet { local_index }) => Some(*local_index),
            _ => None,
        };
        match &self.code[traveller.at] {
            Operator::I32DivS => 64,
            Operator::I32Load { memarg } | Operator::I32Load8U { memarg } => {
                let local = by_local(1);
                traveller.access(local, memarg.offset)
            }
            Operator::I32Store8 { memarg } => {
                let local = by_local(2);
                traveller.access(local, memarg.offset)
            }
            Operator::MemoryFill { .. } => match before(1) {
                Some(Operator::I32Const { value }) => (1024 + *value as u32 / 2).min(8192),
                _ => panic!("a fill of any length was left"),
            },
            Operator::LocalSet { local_index } => {
                *traveller.writes.entry(*local_index).or_default() += 1;
                1
            }
            Operator::GlobalGet { .. } | Operator::GlobalSet { .. } => 8,
            Operator::Call { function_index } => match self.imports.get(*function_index as usize) {
                Some(&"yield") => 1024,
                Some(_) => 8192,
                // With an argument and a result.
                None => 1 + 2,
            },
            Operator::Nop | Operator::Block { .. } | Operator::Loop { .. } | Operator::Else | Operator::End => 0,
            _ => 1,
        }
    }

    /// Returns the instructions before one, the nearest first, without looks.
    fn before(&self, mut at: usize) -> impl Iterator<Item = &Operator<'a>> {
        std::iter::from_fn(move || {
            while at >= 2 && matches!(self.code[at - 2..at], [Operator::Loop { .. }, Operator::End]) {
                at -= 2;
            }
            at = at.checked_sub(1)?;
            Some(&self.code[at])
        })
    }

    /// Returns where a path continues; empty at its end.
    fn next(&self, traveller: &mut Traveller) -> Vec<usize> {
        let at = traveller.at;
        let to = |depth: u32| self.around[at].iter().rev().nth(depth as usize).copied();
        // A path that leaves the function ends.
        let branch = |depth: u32| {
            to(depth).map(|frame| match self.code[frame] {
                Operator::Loop { .. } => frame,
                _ => self.ends[&frame] + 1,
            })
        };
        match &self.code[at] {
            Operator::Loop { .. } => {
                traveller.spent = 0;
                if traveller.loops.insert(at) { vec![at + 1] } else { Vec::new() }
            }
            Operator::If { .. } => vec![at + 1, self.elses.get(&at).copied().unwrap_or_else(|| self.ends[&at] + 1)],
            Operator::Else => vec![self.ends[self.around[at].last().unwrap()] + 1],
            Operator::Br { relative_depth } => branch(*relative_depth).into_iter().collect(),
            Operator::BrIf { relative_depth } => branch(*relative_depth).into_iter().chain([at + 1]).collect(),
            Operator::BrTable { targets } => {
                let depths = targets.targets().map(Result::unwrap).chain([targets.default()]);
                depths.filter_map(branch).collect()
            }
            Operator::Return | Operator::Unreachable => Vec::new(),
            Operator::Call { function_index } if *function_index as usize >= self.imports.len() => {
                assert!(self.is_looked_behind(at + 1), "no look behind the call at {at} of {:?}", self.code);
                traveller.spent = 0;
                vec![at + 1]
            }
            Operator::End if at + 1 == self.code.len() => Vec::new(),
            _ => vec![at + 1],
        }
    }

    /// Returns whether an instruction is a look, or leads only to one, or ends the function.
    fn is_looked_behind(&self, at: usize) -> bool {
        match &self.code[at] {
            Operator::Loop { blockty: BlockType::Empty } | Operator::Return => true,
            Operator::Br { relative_depth } => {
                let target = self.around[at].iter().rev().nth(*relative_depth as usize);
                target.is_some_and(|frame| matches!(self.code[*frame], Operator::Loop { .. }))
            }
            Operator::End => at + 1 == self.code.len(),
            _ => false,
        }
    }
}

impl Traveller {
    /// Returns the cost of accessing memory, through a local if there is one.
    fn access(&mut self, local: Option<u32>, offset: u64) -> u32 {
        let Some(local) = local else { return 512 };
        let writes = self.writes.get(&local).copied().unwrap_or(0);
        if self.touched.insert((local, writes, offset / 4096)) { 512 } else { 8 }
    }
}
