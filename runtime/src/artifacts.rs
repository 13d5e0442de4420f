//! Compiled modules on disk, and the builder process that makes them.
//!
//! An artifact is native code: it lies in a directory only the node's user can enter, under a name that holds its own
//! digest, which is compared before every mapping.
//!
//! ```text
//!   <state>/artifacts/<module digest>.<engine settings>.<artifact digest>.cwasm
//! ```

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pinion_builder::EXIT_REFUSED;
use pinion_control::model::Digest;
use wasmtime::{Engine, Module};

use crate::template;

/// Wall time for one module.
const BUILD_TIME_MAX: Duration = Duration::from_secs(60);
/// Largest artifact that is taken from the builder.
const ARTIFACT_BYTES_MAX: u64 = 256 << 20;
/// Longest refusal that is taken from the builder.
const REFUSAL_BYTES_MAX: u64 = 4096;

/// What went wrong with an artifact.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The builder refuses the module: its sentence.
    #[error("{0}")]
    Refused(String),
    /// The builder took too long, or too much, and was ended.
    #[error("compiling it took more than a module may have ({0})")]
    Limits(String),
    /// The builder could not be run.
    #[error("the builder {} did not run: {error}", program.display())]
    Builder {
        /// Its path.
        program: PathBuf,
        /// Why.
        error: String,
    },
    /// The directory or a file in it.
    #[error("artifact {}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// Not there: the module was not admitted.
    #[error("module {0} was not admitted by this node")]
    Missing(Digest),
    /// Its bytes are not those that were compiled.
    #[error("artifact {} is not what the builder made; remove it and restart", .0.display())]
    Altered(PathBuf),
    /// wasmtime does not take it.
    #[error("artifact {} does not load: {error}", path.display())]
    Load {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// Whether a module was compiled by this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It was there.
    Before,
    /// It was compiled.
    Now,
}

/// The directory of artifacts.
pub struct Artifacts {
    directory: PathBuf,
    builder: PathBuf,
    build_time_max: Duration,
    /// Names the engine settings and release that artifacts must be made with.
    settings: String,
}

impl Artifacts {
    /// Opens (makes) the directory. `engine` is any of the node's.
    ///
    /// # Errors
    /// If it can't be made or entered.
    pub fn open(directory: PathBuf, builder: PathBuf, engine: &Engine) -> Result<Self, ArtifactError> {
        let at = |error| ArtifactError::File { path: directory.clone(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(at)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).map_err(at)?;
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Ok(Self { directory, builder, build_time_max: BUILD_TIME_MAX, settings: format!("{:016x}", hasher.finish()) })
    }

    /// Compiles a module unless its artifact is there; which of both.
    ///
    /// # Errors
    /// Why there is no artifact.
    pub fn admit(&self, digest: &Digest, wasm: &[u8]) -> Result<Admitted, ArtifactError> {
        if self.find(digest)?.is_some() {
            return Ok(Admitted::Before);
        }
        let artifact = self.build(wasm)?;
        let path = self.directory.join(format!("{}{}.cwasm", self.prefix(digest), Digest::of(&artifact).hex()));
        let partial = path.with_extension("partial");
        write_durably(&partial, &artifact)
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|error| ArtifactError::File { path, error })?;
        Ok(Admitted::Now)
    }

    /// Maps a module's artifact into an engine, having compared its digest.
    ///
    /// # Errors
    /// If it is not there, altered, or not for this engine.
    pub fn load(&self, engine: &Engine, digest: &Digest) -> Result<Module, ArtifactError> {
        let path = self.find(digest)?.ok_or(ArtifactError::Missing(*digest))?;
        // Opened once: what is mapped is what was read.
        let at = |error| ArtifactError::File { path: path.clone(), error };
        let mut file = fs::File::open(&path).map_err(at)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(at)?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.ends_with(&format!(".{}.cwasm", Digest::of(&bytes).hex())) {
            return Err(ArtifactError::Altered(path));
        }
        template::load(engine, file).map_err(|error| ArtifactError::Load { path, error: format!("{error:#}") })
    }

    /// Whether the module was admitted.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn has(&self, digest: &Digest) -> Result<bool, ArtifactError> {
        Ok(self.find(digest)?.is_some())
    }

    /// Removes a module's artifacts, of whatever settings. What is mapped stays usable.
    ///
    /// # Errors
    /// If a file can't be removed.
    pub fn forget(&self, digest: &Digest) -> Result<(), ArtifactError> {
        let prefix = format!("{}.", digest.hex());
        for path in self.files()?.into_iter().filter(|path| name(path).starts_with(&prefix)) {
            fs::remove_file(&path).map_err(|error| ArtifactError::File { path, error })?;
        }
        Ok(())
    }

    fn prefix(&self, digest: &Digest) -> String {
        format!("{}.{}.", digest.hex(), self.settings)
    }

    fn find(&self, digest: &Digest) -> Result<Option<PathBuf>, ArtifactError> {
        let prefix = self.prefix(digest);
        let is_it = |path: &PathBuf| name(path).starts_with(&prefix) && name(path).ends_with(".cwasm");
        Ok(self.files()?.into_iter().find(is_it))
    }

    fn files(&self) -> Result<Vec<PathBuf>, ArtifactError> {
        fs::read_dir(&self.directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(|error| ArtifactError::File { path: self.directory.clone(), error })
    }

    fn build(&self, wasm: &[u8]) -> Result<Vec<u8>, ArtifactError> {
        let failed =
            |error: std::io::Error| ArtifactError::Builder { program: self.builder.clone(), error: error.to_string() };
        let mut child = Command::new(&self.builder)
            .env_clear()
            // One thread of low priority: the cores are the data plane's.
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (artifact, refusal, status) = thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(wasm)));
            let artifact = scope.spawn(move || read_at_most(stdout, ARTIFACT_BYTES_MAX));
            let refusal = scope.spawn(move || read_at_most(stderr, REFUSAL_BYTES_MAX));
            let status = wait_at_most(&mut child, self.build_time_max);
            let joined = |read: thread::ScopedJoinHandle<'_, Vec<u8>>| read.join().unwrap_or_default();
            (joined(artifact), joined(refusal), status)
        });
        let refusal = String::from_utf8_lossy(&refusal).trim().to_owned();
        match status.map_err(failed)? {
            Some(status) if status.success() => Ok(artifact),
            Some(status) if status.code() == Some(EXIT_REFUSED) => Err(ArtifactError::Refused(refusal)),
            Some(status) if status.signal().is_some() => {
                Err(ArtifactError::Limits(format!("the builder ended with {status}: {refusal}")))
            }
            Some(status) => Err(failed(std::io::Error::other(format!("it ended with {status}: {refusal}")))),
            None => Err(ArtifactError::Limits(format!("over {} s", self.build_time_max.as_secs()))),
        }
    }
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read_at_most(from: Option<impl Read>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let _ = from.take(bytes_max).read_to_end(&mut bytes);
    }
    bytes
}

/// Waits for a child; kills it when its time is over, and then says none.
fn wait_at_most(child: &mut std::process::Child, time: Duration) -> std::io::Result<Option<ExitStatus>> {
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
    use super::*;

    /// Artifacts whose builder is this shell script.
    fn artifacts(folder: &Path, script: &str) -> Artifacts {
        let builder = folder.join("builder");
        fs::write(&builder, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&builder, fs::Permissions::from_mode(0o700)).unwrap();
        Artifacts::open(folder.join("artifacts"), builder, &crate::engine::engine(1).unwrap()).unwrap()
    }

    const WASM: &[u8] = b"a module";

    #[test]
    fn an_artifact_that_was_altered_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = artifacts(folder.path(), "cat");
        let digest = Digest::of(WASM);
        assert_eq!(artifacts.admit(&digest, WASM).unwrap(), Admitted::Now);
        assert_eq!(artifacts.admit(&digest, WASM).unwrap(), Admitted::Before);
        let path = artifacts.find(&digest).unwrap().unwrap();
        fs::write(&path, "native code of somebody else's").unwrap();
        let engine = crate::engine::engine(1).unwrap();
        assert!(matches!(artifacts.load(&engine, &digest), Err(ArtifactError::Altered(altered)) if altered == path));
    }

    #[test]
    fn nobody_else_may_enter_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mode = fs::metadata(&artifacts(folder.path(), "cat").directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_builder_that_takes_too_long_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut artifacts = artifacts(folder.path(), "exec sleep 600");
        artifacts.build_time_max = Duration::from_millis(50);
        let error = artifacts.admit(&Digest::of(WASM), WASM).unwrap_err();
        assert!(matches!(error, ArtifactError::Limits(_)), "{error}");
    }

    #[test]
    fn a_refusal_is_the_builders_own_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = artifacts(folder.path(), "echo it is too blue >&2; exit 2");
        let error = artifacts.admit(&Digest::of(WASM), WASM).unwrap_err();
        assert!(matches!(&error, ArtifactError::Refused(sentence) if sentence == "it is too blue"), "{error}");
    }
}
