//! Filters of system calls (seccomp): lists of what is allowed, each call as a whole or by the bits of its arguments.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
pub use syscalls::Sysno;

/// What happens to a call that is not on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// It fails with EPERM and is counted, if the process counts ([`crate::refused::count`]); otherwise the process ends (SIGSYS).
    Refuse,
    /// The process ends (SIGSYS).
    Kill,
}

/// A condition on an argument of a call: the bits of the mask have this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// Which argument, from 0.
    pub index: u8,
    /// Which of its bits.
    pub mask: u64,
    /// What they have to be.
    pub value: u64,
}

impl Argument {
    /// The argument has this value in its lower 32 bits, which is all that the kernel reads of an `int`.
    #[must_use]
    pub fn is(index: u8, value: u32) -> Self {
        Self { index, mask: u64::from(u32::MAX), value: value.into() }
    }

    /// The argument has none of these bits.
    #[must_use]
    pub fn has_none_of(index: u8, bits: u64) -> Self {
        Self { index, mask: bits, value: 0 }
    }

    /// The argument has all of these bits.
    #[must_use]
    pub fn has_all_of(index: u8, bits: u64) -> Self {
        Self { index, mask: bits, value: bits }
    }
}

/// A list of allowed system calls.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    calls: BTreeMap<Sysno, Vec<Vec<Argument>>>,
    /// Calls that fail with EACCES, and are no reason for more.
    denied: BTreeMap<Sysno, Vec<Vec<Argument>>>,
}

impl Allowed {
    /// Returns a list of calls that are allowed with any arguments.
    #[must_use]
    pub fn calls(calls: &[Sysno]) -> Self {
        Self::default().and(calls)
    }

    /// Adds calls that are allowed with any arguments.
    #[must_use]
    pub fn and(mut self, calls: &[Sysno]) -> Self {
        self.calls.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// Adds a call that is allowed if all of these conditions hold. A call that is added several times is allowed if one of the lists holds.
    #[must_use]
    pub fn and_if(mut self, call: Sysno, arguments: &[Argument]) -> Self {
        self.calls.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// Adds calls that libraries try and can do without: they fail with EACCES, and nothing more comes of it.
    #[must_use]
    pub fn and_deny(mut self, calls: &[Sysno]) -> Self {
        self.denied.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// As [`Self::and_deny`], for a call of which all of these conditions hold.
    #[must_use]
    pub fn and_deny_if(mut self, call: Sysno, arguments: &[Argument]) -> Self {
        self.denied.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// Takes back what [`Self::and_deny`] or [`Self::and_deny_if`] says of a call.
    #[must_use]
    pub fn without_denial(mut self, call: Sysno) -> Self {
        self.denied.remove(&call);
        self
    }

    /// Makes the filter.
    ///
    /// # Errors
    /// A sentence, if the list is longer than a filter may be, or this machine's architecture has none.
    pub fn filter(&self, otherwise: Otherwise) -> Result<Filter, String> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
        let compile = |rules, matched, otherwise| -> Result<BpfProgram, String> {
            let filter = SeccompFilter::new(rules, otherwise, matched, arch).map_err(|error| error.to_string())?;
            filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())
        };
        let mut rules = rules_of(&self.calls)?;
        let otherwise = match otherwise {
            Otherwise::Refuse => SeccompAction::Trap,
            Otherwise::Kill => SeccompAction::KillProcess,
        };
        // Of the answers of several programs the strictest counts. So what is to fail quietly, by a program of its own, passes the list.
        // That is `clone3`, whose flags a filter cannot see: the C library uses `clone` then. It blocks all signals around the call, so a
        // trap would end the process.
        let flags_out_of_sight = rules_of(&Self::calls(&[Sysno::clone3]).calls)?;
        rules.extend(flags_out_of_sight.clone());
        let no_such_call = SeccompAction::Errno(libc::ENOSYS as u32);
        let mut programs = vec![compile(flags_out_of_sight, no_such_call, SeccompAction::Allow)?];
        if !self.denied.is_empty() {
            let denied = rules_of(&self.denied)?;
            for (call, lists) in &denied {
                match rules.get_mut(call) {
                    None => _ = rules.insert(*call, lists.clone()),
                    // Without a list of conditions the call passes with any arguments.
                    Some(passing) if passing.is_empty() => {}
                    Some(passing) => passing.extend(lists.clone()),
                }
            }
            programs.push(compile(denied, SeccompAction::Errno(libc::EACCES as u32), SeccompAction::Allow)?);
        }
        // The last one, as it may forbid to enter another.
        programs.push(compile(rules, SeccompAction::Allow, otherwise)?);
        Ok(Filter { programs })
    }
}

/// Returns the rules of calls in the form of the library: no list of conditions means any arguments.
fn rules_of(calls: &BTreeMap<Sysno, Vec<Vec<Argument>>>) -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let rules = |(call, lists): (&Sysno, &Vec<Vec<Argument>>)| {
        let rule = |arguments: &Vec<Argument>| SeccompRule::new(arguments.iter().map(condition).collect());
        let rules: Result<Vec<_>, _> = lists.iter().map(rule).collect();
        Ok((i64::from(call.id()), rules.map_err(|error| error.to_string())?))
    };
    calls.iter().map(rules).collect()
}

fn condition(argument: &Argument) -> SeccompCondition {
    let Argument { index, mask, value } = *argument;
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
        .expect("a call has six arguments")
}

/// A filter that a thread can enter. Of several that a thread has entered, the strictest answer counts.
#[derive(Debug, Clone)]
pub struct Filter {
    pub(crate) programs: Vec<BpfProgram>,
}

impl Filter {
    /// Enters the filter on the calling thread, for good. Threads that it starts inherit it. The thread cannot gain privileges any more.
    ///
    /// # Errors
    /// The kernel's, as a sentence.
    pub fn enter(&self) -> Result<(), String> {
        self.programs.iter().try_for_each(|program| {
            seccompiler::apply_filter(program).map_err(|error| format!("the filter of system calls: {error}"))
        })
    }
}

/// Returns the name of a system call.
#[must_use]
pub fn name(number: usize) -> String {
    Sysno::new(number).map_or_else(|| format!("number {number}"), |call| call.name().to_owned())
}
