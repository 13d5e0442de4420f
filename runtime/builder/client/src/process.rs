//! The builder's process: started for each module and each template, limited in time, and killed when it takes too long.
//!
//! Called from threads that may block. See `runtime/builder` for what it does, and [`crate::protocol`] for its messages.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::protocol::{BuilderMessage, Facts};
use crate::supervised::{BuilderEnd, Pipes, SupervisedBuilder};
use crate::{BUILD_TIME_MAX, CPU_TIME_MAX, EXIT_REFUSED, MEMORY_BYTES_MAX, NATIVE_BYTES_MAX};

/// The name of the program.
const PROGRAM: &str = "pinion-builder";
/// Time that the builder has to report by itself that its time is over.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The longest line of facts that is accepted from the builder, in bytes.
const FACTS_BYTES_MAX: u64 = 1 << 20;
/// The most that the builder may write on standard error, in bytes: more than it writes about any module, with each character escaped.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// Why there is no template, or no form of a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The builder refuses the module, with this sentence.
    #[error("{0}")]
    Refused(String),
    /// The builder was ended because of this module before it could report which limit was reached.
    #[error("building it took more than it may: {0}")]
    Limits(String),
    /// [`Builder::stop`] was called.
    #[error("builds have ended")]
    Stopped,
    /// The builder could not be run, or failed.
    #[error("the builder {} failed: {error}", program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// The reason.
        error: String,
    },
}

/// The inputs of a template.
#[derive(Debug, Clone)]
pub struct Wishes<'a> {
    /// The configuration that the module is initialised with.
    pub config: &'a [u8],
    /// The archive of the files that the module sees, if it has a file system.
    pub files: Option<&'a [u8]>,
    /// The most linear memory of each instance, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that its stage is granted, by number.
    pub fields: Vec<&'a str>,
    /// The private keys that its stage is granted, by number.
    pub keys: Vec<&'a str>,
    /// The models that its stage is granted, by number.
    pub models: Vec<&'a str>,
}

/// Returns the path of the builder: the given one, or else in the directory of this program.
#[must_use]
pub fn place(given: Option<PathBuf>) -> PathBuf {
    let beside_us = || Some(std::env::current_exe().ok()?.parent()?.join(PROGRAM));
    given.or_else(beside_us).unwrap_or_else(|| PROGRAM.into())
}

/// Starts the builder. Clones start the same, and stop together.
#[derive(Debug, Clone)]
pub struct Builder {
    program: PathBuf,
    /// Starts it; without one it is started here.
    supervisor: Option<Arc<OwnedFd>>,
    time_max: Duration,
    is_stopped: Arc<AtomicBool>,
}

impl Builder {
    /// Returns a client for the builder at this path.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, supervisor: None, time_max: BUILD_TIME_MAX + LAST_WORDS, is_stopped: Arc::default() }
    }

    /// Has this supervisor start it, which knows the program.
    #[must_use]
    pub fn supervised_by(self, supervisor: Arc<OwnedFd>) -> Self {
        Self { supervisor: Some(supervisor), ..self }
    }

    /// Ends the processes under way, and starts no more.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Builder::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Checks a module.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check(&self, wasm: &[u8]) -> Result<(), BuildError> {
        self.run(&["check".to_owned()], &[wasm], |_| ()).map(|_| ())
    }

    /// Checks the archive of a stage's files.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check_files(&self, archive: &[u8]) -> Result<(), BuildError> {
        self.run(&["check-files".to_owned()], &[archive], |_| ()).map(|_| ())
    }

    /// Prepares a model in ONNX. Returns the form that nodes load.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn model(&self, onnx: &[u8]) -> Result<Vec<u8>, BuildError> {
        self.run(&["model".to_owned()], &[onnx], |_| ())
    }

    /// Builds a template; the builder's messages go to `hear`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn build(
        &self,
        wasm: &[u8],
        wishes: Wishes<'_>,
        hear: impl FnMut(&BuilderMessage) + Send,
    ) -> Result<(Facts, Vec<u8>), BuildError> {
        let Wishes { config, files, memory_bytes_max, fields, keys, models } = wishes;
        let mut arguments = vec![
            "build".to_owned(),
            format!("--config-bytes={}", config.len()),
            format!("--memory-bytes-max={memory_bytes_max}"),
        ];
        arguments.extend(files.map(|files| format!("--files-bytes={}", files.len())));
        arguments.extend(fields.iter().map(|field| format!("--field={field}")));
        arguments.extend(keys.iter().map(|key| format!("--key={key}")));
        arguments.extend(models.iter().map(|model| format!("--model={model}")));
        let mut output = self.run(&arguments, &[config, files.unwrap_or_default(), wasm], hear)?;
        let line = output.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let facts = serde_json::from_slice(&output[..line])
            .map_err(|error| self.failed(&format!("its facts are unreadable: {error}")))?;
        Ok((facts, output.split_off(line + 1)))
    }

    fn failed(&self, error: &impl ToString) -> BuildError {
        BuildError::Program { program: self.program.clone(), error: error.to_string() }
    }

    /// Runs the builder with this input; returns what it writes.
    fn run(
        &self,
        arguments: &[String],
        input: &[&[u8]],
        hear: impl FnMut(&BuilderMessage) + Send,
    ) -> Result<Vec<u8>, BuildError> {
        if self.is_stopped() {
            return Err(BuildError::Stopped);
        }
        let (running, Pipes { mut stdin, stdout, stderr }) =
            self.start(arguments).map_err(|error| self.failed(&error))?;
        let (output, sentences, end) = thread::scope(|scope| {
            scope.spawn(move || input.iter().try_for_each(|bytes| stdin.write_all(bytes)));
            let output = scope.spawn(move || read_at_most(stdout, NATIVE_BYTES_MAX as u64 + FACTS_BYTES_MAX));
            let sentences = scope.spawn(move || listen(stderr, hear));
            let end = self.wait(running);
            (output.join().unwrap_or_default(), sentences.join().unwrap_or_default(), end)
        });
        match end.map_err(|error| self.failed(&error))? {
            Some(BuilderEnd::Status(0)) => Ok(output),
            Some(BuilderEnd::Status(EXIT_REFUSED)) => Err(BuildError::Refused(sentences)),
            Some(BuilderEnd::Status(status)) => Err(self.failed(&format!("it ended with status {status}: {sentences}"))),
            Some(BuilderEnd::Signal(SIGSYS)) => Err(self.failed(&format!(
                "it was killed at a system call that it has no use for, as if this module had taken it over: {sentences}"
            ))),
            Some(BuilderEnd::Signal(signal)) => Err(BuildError::Limits(ended_by(signal, &sentences, remedy(arguments)))),
            Some(BuilderEnd::NotStarted(error)) => Err(self.failed(&error)),
            None if self.is_stopped() => Err(BuildError::Stopped),
            None => Err(BuildError::Limits(format!("it was not done after {} s", self.time_max.as_secs()))),
        }
    }

    fn start(&self, arguments: &[String]) -> io::Result<(Running, Pipes)> {
        if let Some(supervisor) = &self.supervisor {
            let (builder, pipes) = SupervisedBuilder::start(supervisor.as_fd(), arguments)?;
            return Ok((Running::Supervised(builder), pipes));
        }
        let (input, stdin) = io::pipe()?;
        let (stdout, output) = io::pipe()?;
        let (stderr, error) = io::pipe()?;
        let child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .env(THREADS_KEY, THREADS)
            .process_group(0)
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .stderr(Stdio::from(error))
            .spawn()?;
        Ok((Running::Child(child), Pipes { stdin, stdout, stderr }))
    }

    /// Waits for a builder. Kills it when its time is over or when builds are stopped, and then returns none.
    fn wait(&self, mut running: Running) -> io::Result<Option<BuilderEnd>> {
        let deadline = Instant::now() + self.time_max;
        loop {
            if let Some(end) = running.try_wait()? {
                return Ok(Some(end));
            }
            if Instant::now() > deadline || self.is_stopped() {
                running.kill()?;
                return Ok(None);
            }
        }
    }
}

/// The builder's only variable: one thread, of low priority, as the cores belong to the data plane.
pub const THREADS_KEY: &str = "RAYON_NUM_THREADS";
/// Its value.
pub const THREADS: &str = "1";

/// By its number on Linux.
const SIGSYS: i32 = 31;

/// A builder that runs.
enum Running {
    Child(Child),
    Supervised(SupervisedBuilder),
}

impl Running {
    /// Returns how it ended; none while it runs. Waits a short time for that.
    fn try_wait(&mut self) -> io::Result<Option<BuilderEnd>> {
        let child = match self {
            Self::Child(child) => child,
            Self::Supervised(builder) => return builder.try_wait(),
        };
        let Some(status) = child.try_wait()? else {
            thread::sleep(Duration::from_millis(2));
            return Ok(None);
        };
        let signal = || BuilderEnd::Signal(status.signal().unwrap_or(0));
        Ok(Some(status.code().map_or_else(signal, BuilderEnd::Status)))
    }

    /// Kills it with all that it has started.
    fn kill(self) -> io::Result<()> {
        match self {
            Self::Child(mut child) => {
                kill_process_group(Pid::from_child(&child), Signal::KILL)?;
                child.wait().map(drop)
            }
            // The supervisor kills it as its status has no reader any more.
            Self::Supervised(builder) => {
                drop(builder);
                Ok(())
            }
        }
    }
}

/// Returns what to do about an input that takes too much.
fn remedy(arguments: &[String]) -> &'static str {
    match arguments.first().map(String::as_str) {
        Some("model") => "have fewer or smaller weights and steps in it",
        _ => "have less code in its functions",
    }
}

/// Explains the end of a builder by a signal, and says what to do. If there is time, the builder reports an exceeded limit by itself.
fn ended_by(signal: i32, sentences: &str, remedy: &str) -> String {
    // By their numbers on Linux.
    match signal {
        // As the first process of its namespace it cannot be ended by SIGABRT, and ends by what comes after.
        6 | 11 if sentences.contains("memory allocation of") => {
            let mib = MEMORY_BYTES_MAX >> 20;
            format!("the builder asked for more memory than the {mib} MiB that it has ({sentences}): {remedy}")
        }
        9 => format!(
            "the builder was killed (SIGKILL), as it is after {} s of processor time, or when the machine has no memory left: {remedy}",
            CPU_TIME_MAX.as_secs()
        ),
        24 => format!("the builder had {} s of processor time (SIGXCPU): {remedy}", CPU_TIME_MAX.as_secs()),
        11 => format!("the builder's stack was exhausted (SIGSEGV): {remedy}"),
        other => format!("the builder ended with signal {other}: {sentences}"),
    }
}

fn read_at_most(from: impl Read, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = from.take(bytes_max).read_to_end(&mut bytes);
    bytes
}

/// Passes each message on, and returns the sentences among them.
fn listen(from: impl Read, mut hear: impl FnMut(&BuilderMessage)) -> String {
    let mut sentences = Vec::new();
    let lines = BufReader::new(from.take(SAID_BYTES_MAX)).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let said = BuilderMessage::of_line(&line);
        hear(&said);
        if let BuilderMessage::Sentence(sentence) = said {
            sentences.push(sentence);
        }
    }
    sentences.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::protocol::Phase;

    /// Returns a builder that is this shell script, in a folder that must be kept.
    fn builder(script: &str) -> (tempfile::TempDir, Builder) {
        let folder = tempfile::tempdir().unwrap();
        let [text, program] = ["text", "builder"].map(|name| folder.path().join(name));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Copied by another process. If this one wrote it, a program that another test starts meanwhile would inherit the file, open for
        // writing. A file that is open for writing cannot be executed.
        let copied = Command::new("install").args(["-m", "700"]).args([&text, &program]).status().unwrap();
        assert!(copied.success());
        (folder, Builder::new(program))
    }

    const WISHES: Wishes<'_> = Wishes {
        config: b"",
        files: None,
        memory_bytes_max: 1 << 20,
        fields: Vec::new(),
        keys: Vec::new(),
        models: Vec::new(),
    };

    #[test]
    fn a_builder_that_takes_too_long_is_killed() {
        let (_folder, mut builder) = builder("exec sleep 600");
        builder.time_max = Duration::from_millis(50);
        let error = builder.check(b"a module").unwrap_err();
        assert!(matches!(error, BuildError::Limits(_)), "{error}");
    }

    #[test]
    fn a_builder_is_killed_when_builds_are_stopped_and_none_is_started_any_more() {
        let (folder, builder) = builder("echo $$ > \"$(dirname \"$0\")/started\"; exec sleep 600");
        let started = folder.path().join("started");
        thread::scope(|scope| {
            let check = scope.spawn(|| builder.check(b"a module"));
            while !started.exists() {
                thread::yield_now();
            }
            builder.clone().stop();
            assert!(matches!(check.join().unwrap(), Err(BuildError::Stopped)));
        });
        fs::remove_file(&started).unwrap();
        assert!(matches!(builder.check(b"a module"), Err(BuildError::Stopped)));
        assert!(!started.exists());
    }

    #[test]
    fn the_end_of_a_builder_by_a_signal_is_explained_with_its_limit_and_what_to_do() {
        for (script, expected) in [
            (
                "kill -KILL $$",
                "killed (SIGKILL), as it is after 30 s of processor time, or when the machine has no memory left",
            ),
            ("kill -XCPU $$", "had 30 s of processor time (SIGXCPU)"),
            (
                "echo memory allocation of 7 bytes failed >&2; kill -ABRT $$",
                "more memory than the 4096 MiB that it has",
            ),
            ("kill -SEGV $$", "stack was exhausted (SIGSEGV)"),
        ] {
            let (_folder, builder) = builder(script);
            let error = builder.check(b"a module").unwrap_err();
            assert!(matches!(error, BuildError::Limits(_)), "{error}");
            let sentence = error.to_string();
            assert!(sentence.contains(expected) && sentence.contains(": have less code"), "{sentence}");
        }
    }

    #[test]
    fn a_refusal_is_the_builders_own_sentence() {
        let (_folder, builder) =
            builder("echo '{\"phase\":\"validating\"}' >&2; echo '{\"sentence\":\"it is too blue\"}' >&2; exit 2");
        let error = builder.check(b"a module").unwrap_err();
        assert!(matches!(&error, BuildError::Refused(sentence) if sentence == "it is too blue"), "{error}");
    }

    #[test]
    fn facts_and_code_are_separated_and_messages_are_passed_on() {
        let script = "echo '{\"phase\":\"compiling\"}' >&2; echo '{\"memory_bytes\":65536,\"instance_bytes\":4096,\"metrics\":[],\"start\":{\"module\":\"it is so\"}}'; \
                      printf 'native\\ncode'";
        let (_folder, builder) = builder(script);
        let mut heard = Vec::new();
        let (facts, code) = builder.build(b"a module", WISHES, |said| heard.push(said.clone())).unwrap();
        assert_eq!((facts.memory_bytes, &*code), (65536, &b"native\ncode"[..]));
        assert_eq!(heard, [BuilderMessage::Phase(Phase::Compiling)]);
    }

    #[test]
    fn a_builder_that_writes_nonsense_has_failed() {
        let (_folder, builder) = builder("echo nonsense");
        let error = builder.build(b"a module", WISHES, |_| ()).unwrap_err();
        assert!(error.to_string().contains("its facts are unreadable"), "{error}");
    }
}
