//! Takes as much as it can of the threads that work for functions: it answers its first packet, and then asks for one job after the other,
//! without end. Its configuration says for which, and by which key or model: `signs KEY`, `seals KEY`, `runs MODEL`, `holds MODEL`.
//!
//! Its metrics count the jobs that were done, and those that were refused as its tenant had too many.

#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // calls that the SDK does not offer

use pinion_sdk::keys::{Key, SignError};
use pinion_sdk::metrics::Counter;
use pinion_sdk::nn::{Model, NnError, Tensor};
use pinion_sdk::{Batch, Function, InitError};

/// Schemes of the keys that tests have (RFC 8446, section 4.2.3).
const SCHEMES: [u16; 3] = [0x0403, 0x0804, 0x0807];
/// What the sample `classifier`'s model takes.
const SHAPE: [u32; 4] = [1, 32, 32, 3];
const IMAGE: [u8; 3072] = [0x5a; 3072];

mod imports {
    #[link(wasm_import_module = "wasi_ephemeral_nn")]
    unsafe extern "C" {
        pub(super) fn init_execution_context(graph: u32, context: u32) -> i32;
        pub(super) fn compute(context: u32) -> i32;
    }
}

enum Greed {
    Signs(Key, u16),
    Seals(Key),
    Runs(Model),
    /// Makes contexts until it gets no more, again and again, and runs those that there may be.
    Holds,
}

struct Hog {
    greed: Greed,
    done: Counter,
    refused: Counter,
}

impl Function for Hog {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).unwrap_or_default();
        let (verb, name) = text.split_once(' ').unwrap_or_default();
        let greed = match verb {
            "signs" => Greed::Signs(Key::open(name)?, 0),
            "seals" => Greed::Seals(Key::open(name)?),
            "runs" => Greed::Runs(Model::load(name)?),
            "holds" => Model::load(name).map(|_| Greed::Holds)?,
            _ => return Err("it was not told what to do".into()),
        };
        let done = Counter::new("hog_jobs", "Jobs that were done.");
        Ok(Self { greed, done, refused: Counter::new("hog_refusals", "Jobs that were refused.") })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        batch.for_each(pinion_hostile_guests::answer);
        if let Greed::Signs(key, scheme) = &mut self.greed {
            let signs = |scheme: &u16| !matches!(key.sign(*scheme, &handshake()), Err(SignError::Refused));
            *scheme = SCHEMES.into_iter().find(signs).expect("each key of the tests signs by one of these");
        }
        loop {
            match self.ask() {
                true => self.done.add(1),
                false => self.refused.add(1),
            }
        }
    }
}

impl Hog {
    /// Returns whether a job was done, and not refused as there are too many.
    fn ask(&self) -> bool {
        match &self.greed {
            Greed::Signs(key, scheme) => match key.sign(*scheme, &handshake()) {
                Err(SignError::Busy) => false,
                signed => signed.is_ok_and(|signature| !signature.is_empty()) || panic!("it was not signed"),
            },
            Greed::Seals(key) => {
                let ticket = key.seal_ticket(&IMAGE).expect("tickets are sealed");
                assert!(key.open_ticket(&ticket).as_deref() == Some(&IMAGE[..]), "it is another ticket");
                true
            }
            Greed::Runs(model) => match model.run(&[Tensor::u8(&SHAPE, &IMAGE)]) {
                Err(NnError::Busy) => false,
                Ok(_) => true,
                Err(error) => panic!("{error}"),
            },
            Greed::Holds => hold(),
        }
    }
}

/// Makes a context too many, and has each run that there may be. Returns whether one was made.
fn hold() -> bool {
    let mut context = u32::MAX;
    let room = (&raw mut context).expose_provenance() as u32;
    // SAFETY: the host writes 4 bytes at `room`, which are writable.
    let made = unsafe { imports::init_execution_context(0, room) } == 0;
    for number in 0..=context.min(8) {
        // SAFETY: it takes a number only. It has no inputs, so that it fails.
        unsafe { imports::compute(number) };
    }
    made
}

/// Returns what a server signs in TLS 1.3 (RFC 8446, section 4.4.3).
fn handshake() -> Vec<u8> {
    [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[0xab; 32]].concat()
}

pinion_sdk::export!(Hog);
