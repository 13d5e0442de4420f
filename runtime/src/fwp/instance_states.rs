//! The life of chain instances and of templates: the state machine, and the one place that says which step may follow which state.
//!
//! ```text
//!   template   object <----loaded, unloaded----> template
//!
//!   instance            Ready           Taken
//!              Making --------> Cached --------> Serving        shown as   restoring, cached, active or blocked
//!                                 |  \             |
//!                  End(Reclaimed) |   `------------+ End(Terminated)
//!                                 v                v
//!                              Unbinding --> LettingGo                     restoring
//!                               Forgotten        | TakenApart
//!                                                v
//!                                              Over                        terminated, reclaimed
//! ```
//!
//! Used by the launcher, which steps its instances, and by the status table, which shows what it is told. An instance that serves a client
//! cannot be reclaimed, and no instance returns to the cache: there is no such step.

use pinion_control::node::FwpState;

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceEnd {
    /// It ended, or was ended.
    Terminated,
    /// It was reclaimed before a client had it, because memory is short.
    Reclaimed,
}

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its FWPs are being made.
    Making,
    /// It waits for a client.
    Cached,
    /// It serves a client.
    Serving,
    /// The gateway has been told to forget it.
    Unbinding(InstanceEnd),
    /// MMA and worker have been told to release its FWPs.
    LettingGo(InstanceEnd),
    /// All of it is freed.
    Over(InstanceEnd),
}

/// What happens to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The gateway has it for future clients.
    Ready,
    /// A client got it.
    Taken,
    /// It ends, and is to be forgotten.
    End(InstanceEnd),
    /// The gateway has forgotten it.
    Forgotten,
    /// All of its FWPs have been dismantled.
    TakenApart,
}

/// A step that is not possible in the instance's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an instance that is {life:?} cannot be {step:?}")]
pub struct Impossible {
    /// The state.
    pub life: Life,
    /// The step.
    pub step: Step,
}

impl Life {
    /// Returns the state after a step.
    ///
    /// # Errors
    /// If the step cannot follow this state.
    pub fn after(self, step: Step) -> Result<Self, Impossible> {
        match (self, step) {
            (Self::Making, Step::Ready) => Ok(Self::Cached),
            (Self::Cached, Step::Taken) => Ok(Self::Serving),
            (Self::Cached, Step::End(fate)) => Ok(Self::Unbinding(fate)),
            (Self::Serving, Step::End(InstanceEnd::Terminated)) => Ok(Self::Unbinding(InstanceEnd::Terminated)),
            (Self::Unbinding(fate), Step::Forgotten) => Ok(Self::LettingGo(fate)),
            (Self::LettingGo(fate), Step::TakenApart) => Ok(Self::Over(fate)),
            (life, step) => Err(Impossible { life, step }),
        }
    }

    /// Returns the state's public name; `waits` says whether an FWP that serves a client waits for packets.
    #[must_use]
    pub fn state(self, waits: bool) -> FwpState {
        match self {
            Self::Making | Self::Unbinding(_) | Self::LettingGo(_) => FwpState::Restoring,
            Self::Cached => FwpState::Cached,
            Self::Serving if waits => FwpState::Blocked,
            Self::Serving => FwpState::Active,
            Self::Over(InstanceEnd::Terminated) => FwpState::Terminated,
            Self::Over(InstanceEnd::Reclaimed) => FwpState::Reclaimed,
        }
    }
}

/// Whether FWPs of a stage can be made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateLife {
    /// Only the module is known: its template is not built, or not loaded now.
    Object,
    /// It is loaded.
    Template,
}

impl TemplateLife {
    /// Returns the state's public name.
    #[must_use]
    pub fn state(self) -> FwpState {
        match self {
            Self::Object => FwpState::Object,
            Self::Template => FwpState::Template,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use InstanceEnd::{Reclaimed, Terminated};
    use Life::{Cached, LettingGo, Making, Over, Serving, Unbinding};

    const LIVES: [Life; 9] = [
        Making,
        Cached,
        Serving,
        Unbinding(Terminated),
        Unbinding(Reclaimed),
        LettingGo(Terminated),
        LettingGo(Reclaimed),
        Over(Terminated),
        Over(Reclaimed),
    ];
    const STEPS: [Step; 6] =
        [Step::Ready, Step::Taken, Step::End(Terminated), Step::End(Reclaimed), Step::Forgotten, Step::TakenApart];

    /// All possible steps; every other step is impossible.
    const TABLE: [(Life, Step, Life); 9] = [
        (Making, Step::Ready, Cached),
        (Cached, Step::Taken, Serving),
        (Cached, Step::End(Terminated), Unbinding(Terminated)),
        (Cached, Step::End(Reclaimed), Unbinding(Reclaimed)),
        (Serving, Step::End(Terminated), Unbinding(Terminated)),
        (Unbinding(Terminated), Step::Forgotten, LettingGo(Terminated)),
        (Unbinding(Reclaimed), Step::Forgotten, LettingGo(Reclaimed)),
        (LettingGo(Terminated), Step::TakenApart, Over(Terminated)),
        (LettingGo(Reclaimed), Step::TakenApart, Over(Reclaimed)),
    ];

    #[test]
    fn an_instance_takes_the_steps_of_the_table_and_no_others() {
        for life in LIVES {
            for step in STEPS {
                let expected = TABLE.iter().find(|(from, by, _)| (*from, *by) == (life, step)).map(|(_, _, to)| *to);
                assert_eq!(life.after(step).ok(), expected, "{life:?}, {step:?}");
            }
        }
    }

    #[test]
    fn every_state_has_its_name_and_all_names_are_used() {
        let instances = LIVES.iter().flat_map(|life| [life.state(false), life.state(true)]);
        let templates = [TemplateLife::Object, TemplateLife::Template].map(TemplateLife::state);
        let mut seen: Vec<String> = instances.chain(templates).map(|state| state.to_string()).collect();
        seen.sort();
        seen.dedup();
        let mut all = FwpState::ALL.map(|state| state.to_string());
        all.sort();
        assert_eq!(seen, all);
        assert_eq!(Serving.state(true), FwpState::Blocked);
        assert_eq!(Cached.state(true), FwpState::Cached);
    }

    #[test]
    fn an_impossible_step_says_what_it_was() {
        let error = Serving.after(Step::End(Reclaimed)).unwrap_err().to_string();
        assert_eq!(error, "an instance that is Serving cannot be End(Reclaimed)");
    }
}
