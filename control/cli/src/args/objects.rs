//! How a command line names objects: `KIND NAME`, `KIND/NAME`, several of both, and `all`.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};

/// A kind of what a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Tenants with terms of their own.
    Tenant,
    Module,
    /// Private keys: what identifies them, and which chains use them.
    Key,
    Model,
    Chain,
    Rule,
    /// Uploads that nothing names.
    Upload,
    Fwp,
    Instance,
    /// Fields of state.
    State,
}

impl Kind {
    /// All kinds, those of manifests first, in the order in which manifests define them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Tenant,
        Self::Module,
        Self::Key,
        Self::Model,
        Self::Chain,
        Self::Rule,
        Self::Upload,
        Self::Fwp,
        Self::Instance,
        Self::State,
    ];
    /// What `all` means: a tenant's objects in manifests.
    pub(crate) const OF_TENANTS: [Self; 5] = [Self::Module, Self::Key, Self::Model, Self::Chain, Self::Rule];
    /// What can be deleted.
    pub(crate) const OF_MANIFESTS: [Self; 6] =
        [Self::Tenant, Self::Module, Self::Key, Self::Model, Self::Chain, Self::Rule];
    /// What can be described.
    pub(crate) const DESCRIBED: [Self; 7] =
        [Self::Tenant, Self::Module, Self::Key, Self::Model, Self::Chain, Self::Rule, Self::Fwp];

    /// Returns its name for one object, as in `chain/echo`.
    pub(crate) fn singular(self) -> &'static str {
        self.names()[0]
    }

    /// Returns its name for several objects.
    pub(crate) fn plural(self) -> &'static str {
        self.names()[1]
    }

    /// Returns its names: singular, plural and short.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Tenant => ["tenant", "tenants", "tn"],
            Self::Module => ["module", "modules", "mod"],
            Self::Key => ["key", "keys", "k"],
            Self::Model => ["model", "models", "mdl"],
            Self::Chain => ["chain", "chains", "ch"],
            Self::Rule => ["rule", "rules", "ru"],
            Self::Upload => ["upload", "uploads", "up"],
            Self::Fwp => ["fwp", "fwps", "fw"],
            Self::Instance => ["instance", "instances", "inst"],
            Self::State => ["state", "states", "st"],
        }
    }

    /// Returns the kind of this name, if it is one of these.
    pub(crate) fn of(name: &str, among: &[Self]) -> Option<Self> {
        among.iter().copied().find(|kind| kind.names().contains(&name))
    }
}

/// Why words name no objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadObject {
    /// A kind that the command does not know.
    #[error("{name:?} is no kind that this command takes: take one of {}", listed(.among))]
    Kind { name: String, among: &'static [Kind] },
    /// A word without a kind among such with one.
    #[error("{0:?} has no kind: write each object as KIND/NAME, or one KIND and then names")]
    NoKind(String),
    /// A word with a kind behind a kind.
    #[error("{0:?} has a kind, and so has the word before all names: write KIND NAME, or KIND/NAME")]
    TwoKinds(String),
    /// A kind without a name where one is needed.
    #[error("which {kind}? Write {kind} NAME, or {kind}/NAME", kind = .0.singular())]
    NoName(Kind),
    /// Names of several kinds.
    #[error("names of several kinds: write each object as KIND/NAME")]
    NamesOfSeveral,
    /// Several objects where one is needed.
    #[error("this command takes one object")]
    Several,
}

fn listed(kinds: &[Kind]) -> String {
    kinds.iter().map(|kind| kind.plural()).collect::<Vec<_>>().join(", ")
}

/// Objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) kind: Kind,
    /// Their names; all objects of the kind if empty.
    pub(crate) names: Vec<String>,
}

/// Returns what these words name, in their order, each kind once.
///
/// `chains`, `chains,rules` and `all` are all objects of these kinds, `chain a b` and `chain/a chain/b` the same two.
///
/// # Errors
/// A kind that is not among these, or words that mix both ways of writing.
pub(crate) fn selected(words: &[String], among: &'static [Kind]) -> Result<Vec<Selected>, BadObject> {
    let kind_of = |name: &str| Kind::of(name, among).ok_or_else(|| BadObject::Kind { name: name.to_owned(), among });
    let mut all: Vec<Selected> = Vec::new();
    let mut add = |kind, name: Option<&String>| {
        let at = all.iter().position(|selected| selected.kind == kind).unwrap_or_else(|| {
            all.push(Selected { kind, names: Vec::new() });
            all.len() - 1
        });
        all[at].names.extend(name.cloned());
    };
    let Some((first, names)) = words.split_first() else { return Ok(Vec::new()) };
    if first.contains('/') {
        for word in words {
            let (kind, name) = word.split_once('/').ok_or_else(|| BadObject::NoKind(word.clone()))?;
            let kind = kind_of(kind)?;
            if name.is_empty() {
                return Err(BadObject::NoName(kind));
            }
            add(kind, Some(&name.to_owned()));
        }
        return Ok(all);
    }
    for name in first.split(',') {
        match name {
            "all" => Kind::OF_TENANTS.into_iter().filter(|kind| among.contains(kind)).for_each(|kind| add(kind, None)),
            name => add(kind_of(name)?, None),
        }
    }
    match &mut all[..] {
        [Selected { kind, names: of_kind }] => {
            // The ids of FWPs have slashes of their own.
            let has_kind = |name: &&String| *kind != Kind::Fwp && name.contains('/');
            if let Some(name) = names.iter().find(has_kind) {
                return Err(BadObject::TwoKinds(name.clone()));
            }
            of_kind.extend_from_slice(names);
            Ok(all)
        }
        _ if names.is_empty() => Ok(all),
        _ => Err(BadObject::NamesOfSeveral),
    }
}

/// The same, where each object is named.
pub(crate) fn named(words: &[String], among: &'static [Kind]) -> Result<Vec<(Kind, String)>, BadObject> {
    let mut all = Vec::new();
    for Selected { kind, names } in selected(words, among)? {
        if names.is_empty() {
            return Err(BadObject::NoName(kind));
        }
        all.extend(names.into_iter().map(|name| (kind, name)));
    }
    Ok(all)
}

/// The same for one object.
pub(crate) fn one(words: &[String], among: &'static [Kind]) -> Result<(Kind, String), BadObject> {
    match <[_; 1]>::try_from(named(words, among)?) {
        Ok([object]) => Ok(object),
        Err(_) => Err(BadObject::Several),
    }
}

/// Takes every word, and offers kinds to shells that complete a word.
#[derive(Clone, Debug)]
pub(crate) struct Word(pub(crate) &'static [Kind]);

impl TypedValueParser for Word {
    type Value = String;

    fn parse_ref(&self, _: &clap::Command, _: Option<&clap::Arg>, value: &OsStr) -> Result<String, clap::Error> {
        Ok(value.to_string_lossy().into_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |kind: &Kind| {
            let [singular, plural, short] = kind.names();
            PossibleValue::new(plural).aliases([singular, short])
        };
        Some(Box::new(self.0.iter().map(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(ToOwned::to_owned).collect()
    }

    fn found(line: &str) -> Vec<(Kind, Vec<String>)> {
        let found = selected(&words(line), &Kind::ALL).unwrap_or_else(|error| panic!("{line}: {error}"));
        found.into_iter().map(|Selected { kind, names }| (kind, names)).collect()
    }

    fn refused(line: &str) -> String {
        selected(&words(line), &Kind::OF_MANIFESTS).unwrap_err().to_string()
    }

    #[test]
    fn a_kind_has_a_singular_a_plural_and_a_short_name_which_no_other_has() {
        let mut names: Vec<&str> = Kind::ALL.iter().flat_map(|kind| kind.names()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in ["chain", "chains", "ch"] {
            assert_eq!(found(name), [(Kind::Chain, vec![])]);
        }
    }

    #[test]
    fn a_name_follows_its_kind_as_a_word_or_behind_a_slash() {
        let both = [(Kind::Chain, words("a b"))];
        assert_eq!(found("chain a b"), both);
        assert_eq!(found("ch/a chains/b"), both);
        assert_eq!(found("chain/a rule/b chain/c"), [(Kind::Chain, words("a c")), (Kind::Rule, words("b"))]);
    }

    #[test]
    fn the_id_of_an_fwp_may_have_slashes() {
        let template = [(Kind::Fwp, words("demo/echo/0"))];
        assert_eq!(found("fwp demo/echo/0"), template);
        assert_eq!(found("fwp/demo/echo/0"), template);
    }

    #[test]
    fn all_and_lists_of_kinds_are_all_objects_of_several_kinds() {
        let kinds = |line| found(line).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(kinds("all"), Kind::OF_TENANTS);
        assert_eq!(kinds("rules,chains"), [Kind::Rule, Kind::Chain]);
    }

    #[test]
    fn words_that_name_no_object_are_errors_that_say_what_to_write() {
        for (line, problem) in [
            (
                "rulez",
                "\"rulez\" is no kind that this command takes: take one of tenants, modules, keys, models, chains, rules",
            ),
            ("fwp/0.0", "\"fwp\" is no kind"),
            ("chain/a b", "\"b\" has no kind"),
            ("chain rule/b", "\"rule/b\" has a kind, and so has the word before"),
            ("chain/", "which chain? Write chain NAME, or chain/NAME"),
            ("chains,rules a", "names of several kinds"),
        ] {
            assert!(refused(line).starts_with(problem), "{line}: {}", refused(line));
        }
        assert_eq!(named(&words("chain"), &Kind::ALL), Err(BadObject::NoName(Kind::Chain)));
        assert_eq!(one(&words("chain a b"), &Kind::ALL), Err(BadObject::Several));
    }
}
