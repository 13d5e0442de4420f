//! Why the builder does not take a module, in sentences for its tenant.

use std::time::Duration;

use pinion_abi::{ABI_VERSION, EXPORT_ABI_PREFIX};
use pinion_builder_client::metrics::BadMetrics;
use pinion_guest::files::BadBundle;

use crate::FUNCTION_BYTES_MAX;

/// Why a module is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Not WebAssembly at all.
    #[error("it is not a WebAssembly module: it starts with {0:02x?} instead of \\0asm")]
    NotWasm(Vec<u8>),
    /// A component where a core module is needed.
    #[error("it is a WebAssembly component; build a core module for wasm32-wasip1 instead")]
    Component,
    /// Malformed, or uses features that are off.
    #[error("it does not compile: {0}")]
    Invalid(String),
    /// No declaration of the ABI.
    #[error("it exports no function {EXPORT_ABI_PREFIX}{ABI_VERSION}: build it with the Pinion SDK")]
    NoAbi,
    /// Another version of the ABI.
    #[error(
        "it speaks version {0} of the Pinion ABI, this node version {ABI_VERSION}: rebuild it with the SDK of this release"
    )]
    OtherAbi(String),
    /// An export of the ABI is missing or has another type.
    #[error("it must export {name} as {expected}")]
    Export {
        /// The export's name.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// An import the node does not offer.
    #[error("it imports {module}.{name}, which this node does not offer")]
    UnknownImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// An import of a known name with another type.
    #[error("it imports {module}.{name} with another type than {expected}")]
    ImportType {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// The type offered.
        expected: String,
    },
    /// An import that only stages may have that were granted state.
    #[error(
        "it imports pinion.{0}, and its stage is granted no state: grant it the fields that it uses (state = {{ FIELD = \"read\" }}, or \
         \"write\"), each declared as [state.FIELD]"
    )]
    NoState(String),
    /// More tables than there is room for.
    #[error("it has {0} tables, and a function may have one")]
    Tables(u32),
    /// A function that may run too long without a loop or call.
    #[error(
        "its function {index} has {bytes} bytes of code, and a function may have {FUNCTION_BYTES_MAX}: divide it, or have \
         the compiler inline less into it"
    )]
    LongFunction {
        /// Its index, imported functions included.
        index: usize,
        /// Of its code.
        bytes: usize,
    },
    /// Its memory is over its chain's limit from the start.
    #[error("it starts with {needed_kib} KiB of memory, and memory_limit_kib is {limit_kib}: raise it")]
    Memory {
        /// What it starts with.
        needed_kib: u64,
        /// What its chain grants.
        limit_kib: u64,
    },
    /// It can't be instantiated.
    #[error("it could not be instantiated: {0}")]
    NotInstantiated(String),
    /// Its `pinion_init` refused; what it logged last says why.
    #[error("its pinion_init refused with status {status}{}", said(.last_line))]
    InitRefused {
        /// What `pinion_init` returned.
        status: i32,
        /// The last line it logged.
        last_line: Option<String>,
    },
    /// It trapped before it was initialised.
    #[error("it trapped during its initialisation: {message}{}{}", said(.last_line), indented(.backtrace))]
    InitTrapped {
        /// What happened.
        message: String,
        /// The last line it logged.
        last_line: Option<String>,
        /// Where.
        backtrace: String,
    },
    /// Its files are none.
    #[error("{0}")]
    Files(#[from] BadBundle),
    /// It has files open that no instance would.
    #[error(
        "it has {0} files or directories open at the end of its initialisation: no instance would have them, so close them there"
    )]
    InitFilesOpen(usize),
    /// It panicked before it was initialised.
    #[error("it panicked during its initialisation: {message}{}", indented(.backtrace))]
    InitPanicked {
        /// What it said of it.
        message: String,
        /// Where.
        backtrace: String,
    },
    /// It exited, waited, or did what is not to be done then.
    #[error("it {0} during its initialisation")]
    InitMisuse(String),
    /// It did not come to the end of its initialisation in time.
    #[error("its initialisation took longer than {} ms", .0.as_millis())]
    InitTime(Duration),
    /// There is no pool header where it says.
    #[error("its pinion_pool names {0:#x}, which is outside its memory")]
    Pool(u32),
    /// Its metrics are not what they have to be.
    #[error(transparent)]
    Metrics(#[from] BadMetrics),
}

fn said(last_line: &Option<String>) -> String {
    last_line.as_ref().map(|line| format!(": {line}")).unwrap_or_default()
}

fn indented(backtrace: &str) -> String {
    backtrace.lines().map(|line| format!("\n{line}")).collect()
}
