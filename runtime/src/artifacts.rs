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

/// The directory of artifacts.
pub struct Artifacts {
    directory: PathBuf,
    builder: PathBuf,
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
        Ok(Self { directory, builder, settings: format!("{:016x}", hasher.finish()) })
    }

    /// Compiles a module unless its artifact is there.
    ///
    /// # Errors
    /// Why there is no artifact.
    pub fn admit(&self, digest: &Digest, wasm: &[u8]) -> Result<(), ArtifactError> {
        if self.find(digest)?.is_some() {
            return Ok(());
        }
        let artifact = self.build(wasm)?;
        let path = self.directory.join(format!("{}{}.cwasm", self.prefix(digest), Digest::of(&artifact).hex()));
        let partial = path.with_extension("partial");
        write_durably(&partial, &artifact)
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(|error| ArtifactError::File { path, error })
    }

    /// Maps a module's artifact into an engine, having compared its digest.
    ///
    /// # Errors
    /// If it is not there, altered, or not for this engine.
    pub fn load(&self, engine: &Engine, digest: &Digest) -> Result<Module, ArtifactError> {
        let path = self.find(digest)?.ok_or(ArtifactError::Missing(*digest))?;
        let bytes = fs::read(&path).map_err(|error| ArtifactError::File { path: path.clone(), error })?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.ends_with(&format!(".{}.cwasm", Digest::of(&bytes).hex())) {
            return Err(ArtifactError::Altered(path));
        }
        template::load(engine, &path).map_err(|error| ArtifactError::Load { path, error: format!("{error:#}") })
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
            let status = wait_at_most(&mut child, BUILD_TIME_MAX);
            let joined = |read: thread::ScopedJoinHandle<'_, Vec<u8>>| read.join().unwrap_or_default();
            (joined(artifact), joined(refusal), status)
        });
        let refusal = String::from_utf8_lossy(&refusal).trim().to_owned();
        match status.map_err(failed)? {
            Some(status) if status.success() => Ok(artifact),
            Some(status) if status.code() == Some(EXIT_REFUSED) => Err(ArtifactError::Refused(refusal)),
            Some(status) => Err(ArtifactError::Limits(format!("the builder ended with {status}: {refusal}"))),
            None => Err(ArtifactError::Limits(format!("over {} s", BUILD_TIME_MAX.as_secs()))),
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
