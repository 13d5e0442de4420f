//! Finds the template whose function was being started when the process ended, so that the next start does not start it.
//!
//! A function whose code ends the process, through a fault of the engine, would end it at each start. So before the launcher starts the
//! first instance of a template it writes a record into a file. It clears the record when the instance has reached its first wait or
//! failed. A record that exists when a node starts names what ended the previous process. That template is held back, in a file of its own,
//! until one of its chains or its module is applied again, or until it is not needed any more.
//!
//! ```text
//!   <state>/trial        what is being started: one block, the record as JSON, padded with zeros
//!   <state>/held.json    what is held back
//! ```
//!
//! Only the launcher starts instances, and it has one thread: so there is one record at a time. Of several starts that are interrupted by each
//! other's turns it names the one that had the last turn. The kernel keeps
//! the file's contents when the process ends, so nothing is synced. A record from before the machine's last boot proves nothing, because a
//! machine failure may have ended the process. Later instances of a template write nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use pinion_control::model::Digest;
use serde::{Deserialize, Serialize};

use crate::templates::artifacts::TemplateKey;
use crate::templates::derived::{self, write_durably};

/// The largest size of a record.
const RECORD_BYTES_MAX: usize = 4096;

/// The function that is being started, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// The chain's owner.
    pub tenant: String,
    /// The chain.
    pub chain: String,
    /// The stage's module.
    pub module: String,
    /// See [`TemplateKey`].
    template: String,
    /// The boot id of the machine.
    boot: String,
    /// Seconds since 1970.
    at: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Trials {
    directory: PathBuf,
    boot: String,
    /// None if the file is not available: then nothing is held back.
    record: Option<File>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Templates of which an instance was started since the node started.
    proven: HashSet<TemplateKey>,
    held: BTreeMap<TemplateKey, Trial>,
    /// The template that the record names.
    recorded: Option<TemplateKey>,
}

/// Clears the record when the start of an instance has succeeded or failed.
#[must_use = "the record is cleared when this is dropped"]
pub struct Started<'a> {
    trials: &'a Trials,
    key: Option<TemplateKey>,
}

impl Started<'_> {
    /// Notes that the instance has reached its first wait: later instances of its template are not recorded.
    pub fn well(mut self) {
        if let Some(key) = self.key.take() {
            self.trials.known().proven.insert(key);
            self.trials.ended(&key);
        }
    }

    /// Notes that the start is interrupted, and goes on with [`Trials::begin`] or comes to its end with [`Trials::ended`]. Meanwhile the
    /// record stays, unless the start of another template is recorded.
    pub fn paused(mut self) {
        self.key = None;
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.trials.ended(&key);
        }
    }
}

impl Trials {
    /// Opens the files of the node with this state directory, and holds back what ended the previous process. Files that cannot be read or
    /// written are logged, and do not prevent the start.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Self::open_in_boot(directory, boot)
    }

    fn open_in_boot(directory: &Path, boot: String) -> Self {
        let held = read_held(&directory.join(HELD)).unwrap_or_else(|error| {
            tracing::warn!("the list of held-back chains can't be read: {error}");
            BTreeMap::new()
        });
        let record = open_record(&directory.join(RECORD));
        let record = record.inspect_err(|error| tracing::warn!("instance starts can't be recorded: {error}")).ok();
        let known = Mutex::new(Known { held, ..Known::default() });
        let trials = Self { directory: directory.to_owned(), boot, record, known };
        if let Some(ended) = trials.read_record().filter(|trial| trial.boot == trials.boot) {
            let Trial { tenant, chain, module, .. } = &ended;
            tracing::error!(%tenant, %chain, %module, "the node ended while an instance was started: the chain is held back until it is applied again");
            if let Ok(key) = ended.template.parse() {
                let mut known = trials.known();
                known.held.insert(key, ended);
                trials.write_held(&known.held);
            }
        }
        trials.clear();
        trials
    }

    /// Records that an instance of a template is about to be started, of this module in this chain, or goes on being started.
    pub fn begin(&self, key: &TemplateKey, tenant: &str, chain: &str, module: &str) -> Started<'_> {
        let mut known = self.known();
        let Some(record) = self.record.as_ref().filter(|_| !known.proven.contains(key)) else {
            return Started { trials: self, key: None };
        };
        if known.recorded.replace(*key) == Some(*key) {
            return Started { trials: self, key: Some(*key) };
        }
        drop(known);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let [tenant, chain, module] = [tenant, chain, module].map(str::to_owned);
        let trial = Trial { tenant, chain, module, template: key.to_string(), boot: self.boot.clone(), at };
        let mut block = serde_json::to_vec(&trial).expect("a trial is plain words and numbers");
        block.resize(RECORD_BYTES_MAX.max(block.len()), 0);
        if let Err(error) = record.write_all_at(&block, 0) {
            tracing::debug!("the start of an instance could not be recorded: {error}");
        }
        Started { trials: self, key: Some(*key) }
    }

    /// Clears the record if it names this template: the start of its instance has come to an end.
    pub fn ended(&self, key: &TemplateKey) {
        if self.known().recorded.take_if(|recorded| recorded == key).is_some() {
            self.clear();
        }
    }

    /// Returns why no instance of the template is started, as a sentence; none if it is not held back.
    pub fn held(&self, key: &TemplateKey) -> Option<String> {
        let known = self.known();
        let Trial { tenant, chain, at, .. } = known.held.get(key)?;
        let at = utc(*at);
        Some(format!(
            "the node ended at {at} while an instance of it was started (for chain {tenant}/{chain}): mend the function, or apply the \
             chain again to try it once more"
        ))
    }

    /// Allows these templates to be started again, and those of these tenants' modules; returns whether one was held back. Templates of
    /// other tenants' modules of the same bytes stay held back.
    pub fn release(&self, templates: &BTreeSet<TemplateKey>, modules: &BTreeSet<(&str, Digest)>) -> bool {
        self.release_if(|key, trial| {
            templates.contains(key) || modules.contains(&(trial.tenant.as_str(), *key.module()))
        })
    }

    fn release_if(&self, is_meant: impl Fn(&TemplateKey, &Trial) -> bool) -> bool {
        let mut known = self.known();
        let before = known.held.len();
        known.held.retain(|key, trial| !is_meant(key, trial));
        let is_released = known.held.len() < before;
        if is_released {
            self.write_held(&known.held);
        }
        is_released
    }

    /// Forgets templates that are not needed any more.
    pub fn retain(&self, is_needed: impl Fn(&TemplateKey) -> bool) {
        self.known().proven.retain(&is_needed);
        self.release_if(|key, _| !is_needed(key));
    }

    fn read_record(&self) -> Option<Trial> {
        let mut block = Vec::new();
        let mut record = self.record.as_ref()?;
        io::Seek::rewind(&mut record).and_then(|()| io::Read::read_to_end(&mut record, &mut block)).ok()?;
        let text = block.split(|byte| *byte == 0).next()?;
        serde_json::from_slice(text).ok()
    }

    fn clear(&self) {
        if let Some(record) = &self.record
            && let Err(error) = record.write_all_at(&[0], 0)
        {
            tracing::warn!("the record of an instance's start could not be cleared: {error}");
        }
    }

    fn write_held(&self, held: &BTreeMap<TemplateKey, Trial>) {
        let path = self.directory.join(HELD);
        let written = if held.is_empty() {
            fs::remove_file(&path)
                .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        } else {
            let held: Vec<&Trial> = held.values().collect();
            let text = serde_json::to_vec(&held).expect("trials are plain words and numbers");
            let partial = path.with_extension("partial");
            write_durably(&partial, &text).and_then(|()| fs::rename(&partial, &path))
        };
        if let Err(error) = written {
            tracing::warn!(
                "the list of held-back chains could not be written, and is lost when the process ends: {error}"
            );
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const RECORD: &str = "trial";
const HELD: &str = "held.json";

/// Opens the record's file, with space for a record allocated: later writes need no new blocks.
fn open_record(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        derived::remove(path)?;
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let len = file.metadata()?.len();
    if len < RECORD_BYTES_MAX as u64 {
        file.write_all_at(&vec![0; RECORD_BYTES_MAX - len as usize], len)?;
    }
    Ok(file)
}

fn read_held(path: &Path) -> io::Result<BTreeMap<TemplateKey, Trial>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read?,
    };
    let held: Vec<Trial> = serde_json::from_slice(&text)?;
    Ok(held.into_iter().filter_map(|trial| Some((trial.template.parse().ok()?, trial))).collect())
}

/// Formats seconds since 1970 in RFC 3339.
fn utc(seconds: u64) -> String {
    // A damaged record may hold any number.
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("{seconds} s after 1970"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::artifacts::Wishes;

    fn key(module: &str) -> TemplateKey {
        key_of("demo", module)
    }

    fn key_of(tenant: &str, module: &str) -> TemplateKey {
        let wishes = Wishes {
            tenant,
            config: b"",
            files: None,
            memory_bytes_max: 1 << 20,
            fields: Vec::new(),
            keys: Vec::new(),
            models: Vec::new(),
        };
        TemplateKey::new(Digest::of(module.as_bytes()), &wishes)
    }

    fn release(trials: &Trials, module: &str) -> bool {
        trials.release(&BTreeSet::from([key(module)]), &BTreeSet::new())
    }

    fn begin<'a>(trials: &'a Trials, module: &str) -> Started<'a> {
        trials.begin(&key(module), "demo", "echo", module)
    }

    /// The process ends: nothing is cleared.
    fn ends(started: Started<'_>) {
        std::mem::forget(started);
    }

    #[test]
    fn a_function_being_started_when_the_process_ends_is_held_back_across_restarts_until_released() {
        let folder = tempfile::tempdir().unwrap();
        let trials = Trials::open(folder.path());
        begin(&trials, "good").well();
        ends(begin(&trials, "bad"));
        drop(trials);
        for _ in 0..2 {
            let trials = Trials::open(folder.path());
            assert_eq!(trials.held(&key("good")), None);
            let held = trials.held(&key("bad")).unwrap();
            assert!(held.contains("while an instance of it was started (for chain demo/echo)"), "{held}");
        }
        let trials = Trials::open(folder.path());
        assert!(!release(&trials, "good"));
        assert!(release(&trials, "bad") && !release(&trials, "bad"));
        assert_eq!(Trials::open(folder.path()).held(&key("bad")), None);
    }

    #[test]
    fn a_module_that_is_applied_again_releases_its_own_tenants_templates_only() {
        let folder = tempfile::tempdir().unwrap();
        for tenant in ["demo", "rival"] {
            let trials = Trials::open(folder.path());
            ends(trials.begin(&key_of(tenant, "bad"), tenant, "echo", "bad"));
        }
        let trials = Trials::open(folder.path());
        let is_held = || ["demo", "rival"].map(|tenant| trials.held(&key_of(tenant, "bad")).is_some());
        assert_eq!(is_held(), [true, true]);
        let modules = BTreeSet::from([("demo", Digest::of(b"bad"))]);
        assert!(trials.release(&BTreeSet::new(), &modules) && !trials.release(&BTreeSet::new(), &modules));
        assert_eq!(is_held(), [false, true]);
    }

    #[test]
    fn a_function_that_was_started_or_failed_is_not_held_back_when_the_process_ends_later() {
        let folder = tempfile::tempdir().unwrap();
        let trials = Trials::open(folder.path());
        begin(&trials, "good").well();
        drop(begin(&trials, "trapped"));
        // Another instance of a template that was started before.
        ends(begin(&trials, "good"));
        let trials = Trials::open(folder.path());
        assert!(["good", "trapped"].iter().all(|module| trials.held(&key(module)).is_none()));
    }

    #[test]
    fn of_starts_that_take_turns_the_one_with_the_last_turn_is_held_back_unless_it_came_to_its_end() {
        let is_held = |of: &dyn Fn(&Trials)| {
            let folder = tempfile::tempdir().unwrap();
            of(&Trials::open(folder.path()));
            let trials = Trials::open(folder.path());
            ["first", "second"].map(|module| trials.held(&key(module)).is_some())
        };
        let both = |trials: &Trials| ["first", "second"].iter().for_each(|module| begin(trials, module).paused());
        assert_eq!(is_held(&|trials| begin(trials, "first").paused()), [true, false]);
        assert_eq!(is_held(&both), [false, true]);
        let then_first = |trials: &Trials| {
            both(trials);
            begin(trials, "first").paused();
        };
        assert_eq!(is_held(&then_first), [true, false]);
        let first_ends = |trials: &Trials| {
            both(trials);
            trials.ended(&key("first"));
        };
        assert_eq!(is_held(&first_ends), [false, true]);
        let both_end = |trials: &Trials| {
            first_ends(trials);
            begin(trials, "second").well();
        };
        assert_eq!(is_held(&both_end), [false, false]);
    }

    #[test]
    fn a_function_being_started_when_the_machine_stopped_is_not_held_back() {
        let folder = tempfile::tempdir().unwrap();
        ends(begin(&Trials::open_in_boot(folder.path(), "a boot".into()), "good"));
        assert_eq!(Trials::open_in_boot(folder.path(), "the next".into()).held(&key("good")), None);
    }

    #[test]
    fn a_template_that_is_no_longer_needed_is_not_held_back() {
        let folder = tempfile::tempdir().unwrap();
        ends(begin(&Trials::open(folder.path()), "bad"));
        let trials = Trials::open(folder.path());
        trials.retain(|other| *other == key("bad"));
        assert!(trials.held(&key("bad")).is_some());
        trials.retain(|other| *other != key("bad"));
        assert_eq!(trials.held(&key("bad")), None);
        assert!(!folder.path().join(HELD).exists());
    }

    #[test]
    fn damaged_or_inaccessible_files_do_not_prevent_a_start() {
        for name in [RECORD, HELD] {
            for (what, damage) in crate::templates::derived::tests::DAMAGES {
                let folder = tempfile::tempdir().unwrap();
                let state = folder.path().join("state");
                fs::create_dir(&state).unwrap();
                ends(begin(&Trials::open(&state), "bad"));
                drop(Trials::open(&state));
                damage(&state.join(name));
                let trials = Trials::open(&state);
                ends(begin(&trials, "worse"));
                let _ = trials.held(&key("bad"));
                drop(Trials::open(&state));
                assert!(
                    !Trials::open(&state).release(&BTreeSet::from([key("other")]), &BTreeSet::new()),
                    "{name} was {what}"
                );
            }
        }
    }

    #[test]
    fn times_are_shown_in_rfc_3339() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "18446744073709551615 s after 1970"),
        ] {
            assert_eq!(utc(seconds), shown);
        }
    }
}
