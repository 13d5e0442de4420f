//! The builder's process: started for each module and each template, limited in time, ended when it takes too long.
//!
//! Called from threads that may block. See `runtime/builder` for what it does, and [`crate::protocol`] for what is said.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::EXIT_REFUSED;
use crate::protocol::{Facts, Said};

/// What it is called.
const PROGRAM: &str = "pinion-builder";
/// Wall time for one module.
const BUILD_TIME_MAX: Duration = Duration::from_secs(60);
/// Largest template that is taken from the builder, its facts included.
const TEMPLATE_BYTES_MAX: u64 = 256 << 20;
/// Most that the builder may say.
const SAID_BYTES_MAX: u64 = 256 << 10;

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The builder refuses the module: its sentence.
    #[error("{0}")]
    Refused(String),
    /// The builder took too long, or too much, and was ended.
    #[error("building it took more than a module may have ({0})")]
    Limits(String),
    /// The builder could not be run.
    #[error("the builder {} did not run: {error}", program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// Why.
        error: String,
    },
}

/// What a template is built with.
#[derive(Debug, Clone)]
pub struct Wishes<'a> {
    /// The configuration that the module is initialised with.
    pub config: &'a [u8],
    /// The archive of the files that it finds, if it has a file system.
    pub files: Option<&'a [u8]>,
    /// Linear memory that each instance may have, in bytes.
    pub memory_bytes_max: u64,
    /// The fields of state that its stage was granted, by their numbers.
    pub fields: Vec<&'a str>,
}

/// Where the builder is: where somebody says, or beside the program that asks.
#[must_use]
pub fn place(given: Option<PathBuf>) -> PathBuf {
    let beside_us = || Some(std::env::current_exe().ok()?.parent()?.join(PROGRAM));
    given.or_else(beside_us).unwrap_or_else(|| PROGRAM.into())
}

/// How to start the builder.
#[derive(Debug, Clone)]
pub struct Builder {
    program: PathBuf,
    time_max: Duration,
}

impl Builder {
    /// The builder at this path.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, time_max: BUILD_TIME_MAX }
    }

    /// Has a module judged.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check(&self, wasm: &[u8]) -> Result<(), BuildError> {
        self.run(&["check".to_owned()], &[wasm], |_| ()).map(|_| ())
    }

    /// Has the archive of a stage's files judged.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check_files(&self, archive: &[u8]) -> Result<(), BuildError> {
        self.run(&["check-files".to_owned()], &[archive], |_| ()).map(|_| ())
    }

    /// Has a template built; what the builder says meanwhile goes to `hear`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn build(
        &self,
        wasm: &[u8],
        wishes: Wishes<'_>,
        hear: impl FnMut(&Said) + Send,
    ) -> Result<(Facts, Vec<u8>), BuildError> {
        let Wishes { config, files, memory_bytes_max, fields } = wishes;
        let mut arguments = vec![
            "build".to_owned(),
            format!("--config-bytes={}", config.len()),
            format!("--memory-bytes-max={memory_bytes_max}"),
        ];
        arguments.extend(files.map(|files| format!("--files-bytes={}", files.len())));
        arguments.extend(fields.iter().map(|field| format!("--field={field}")));
        let mut output = self.run(&arguments, &[config, files.unwrap_or_default(), wasm], hear)?;
        let line = output.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let facts = serde_json::from_slice(&output[..line])
            .map_err(|error| self.failed(&format!("its facts are unreadable: {error}")))?;
        Ok((facts, output.split_off(line + 1)))
    }

    fn failed(&self, error: &impl ToString) -> BuildError {
        BuildError::Program { program: self.program.clone(), error: error.to_string() }
    }

    /// What the builder writes, given this to read.
    fn run(
        &self,
        arguments: &[String],
        input: &[&[u8]],
        hear: impl FnMut(&Said) + Send,
    ) -> Result<Vec<u8>, BuildError> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            // One thread of low priority: the cores are the data plane's.
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| self.failed(&error))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (output, sentences, status) = thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut stdin| input.iter().try_for_each(|bytes| stdin.write_all(bytes))));
            let output = scope.spawn(move || read_at_most(stdout, TEMPLATE_BYTES_MAX));
            let sentences = scope.spawn(move || listen(stderr, hear));
            let status = wait_at_most(&mut child, self.time_max);
            (output.join().unwrap_or_default(), sentences.join().unwrap_or_default(), status)
        });
        match status.map_err(|error| self.failed(&error))? {
            Some(status) if status.success() => Ok(output),
            Some(status) if status.code() == Some(EXIT_REFUSED) => Err(BuildError::Refused(sentences)),
            Some(status) if status.signal().is_some() => {
                Err(BuildError::Limits(format!("the builder ended with {status}: {sentences}")))
            }
            Some(status) => Err(self.failed(&format!("it ended with {status}: {sentences}"))),
            None => Err(BuildError::Limits(format!("over {} s", self.time_max.as_secs()))),
        }
    }
}

fn read_at_most(from: Option<impl Read>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let _ = from.take(bytes_max).read_to_end(&mut bytes);
    }
    bytes
}

/// Passes on what is said, and returns what of it are sentences.
fn listen(from: Option<impl Read>, mut hear: impl FnMut(&Said)) -> String {
    let mut sentences = Vec::new();
    let lines = from.into_iter().flat_map(|from| BufReader::new(from.take(SAID_BYTES_MAX)).split(b'\n'));
    for line in lines.map_while(Result::ok) {
        let said = Said::from(&*String::from_utf8_lossy(&line));
        hear(&said);
        if let Said::Sentence(sentence) = said {
            sentences.push(sentence);
        }
    }
    sentences.join("\n").trim().to_owned()
}

/// Waits for a child; kills it when its time is over, and then says none.
fn wait_at_most(child: &mut Child, time: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A builder that is this shell script, in a folder that has to stay.
    fn builder(script: &str) -> (tempfile::TempDir, Builder) {
        let folder = tempfile::tempdir().unwrap();
        let [text, program] = ["text", "builder"].map(|name| folder.path().join(name));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Written by another process: a test beside this one may start a program while a file of ours is open for writing, which then has it
        // open, too, and nothing that somebody has open for writing can be started.
        let copied = Command::new("install").args(["-m", "700"]).args([&text, &program]).status().unwrap();
        assert!(copied.success());
        (folder, Builder::new(program))
    }

    const WISHES: Wishes<'_> = Wishes { config: b"", files: None, memory_bytes_max: 1 << 20, fields: Vec::new() };

    #[test]
    fn a_builder_that_takes_too_long_is_killed() {
        let (_folder, mut builder) = builder("exec sleep 600");
        builder.time_max = Duration::from_millis(50);
        let error = builder.check(b"a module").unwrap_err();
        assert!(matches!(error, BuildError::Limits(_)), "{error}");
    }

    #[test]
    fn a_refusal_is_the_builders_own_sentence() {
        let (_folder, builder) = builder("echo phase: validating >&2; echo it is too blue >&2; exit 2");
        let error = builder.check(b"a module").unwrap_err();
        assert!(matches!(&error, BuildError::Refused(sentence) if sentence == "it is too blue"), "{error}");
    }

    #[test]
    fn facts_and_code_come_apart_and_what_is_said_is_heard() {
        let script = "echo phase: compiling >&2; echo '{\"memory_bytes\":65536,\"metrics\":[],\"start\":{\"module\":\"it is so\"}}'; \
                      printf 'native\\ncode'";
        let (_folder, builder) = builder(script);
        let mut heard = Vec::new();
        let (facts, code) = builder.build(b"a module", WISHES, |said| heard.push(said.to_string())).unwrap();
        assert_eq!((facts.memory_bytes, &*code), (65536, &b"native\ncode"[..]));
        assert_eq!(heard, ["phase: compiling"]);
    }

    #[test]
    fn a_builder_that_writes_nonsense_has_failed() {
        let (_folder, builder) = builder("echo nonsense");
        let error = builder.build(b"a module", WISHES, |_| ()).unwrap_err();
        assert!(error.to_string().contains("its facts are unreadable"), "{error}");
    }
}
