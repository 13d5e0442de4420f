//! Passes frames on to the next stage until one has a word of its configuration in it: `panic WORD` ends the instance then; with `corrupt WORD`
//! it inverts the last bytes of all frames from then on, so that the next stage gets others than its client has sent.

use pinion_sdk::{Batch, Function, InitError};

/// Bytes at the end of a frame that are inverted.
const CORRUPTED_BYTES: usize = 8;

struct Fuse {
    word: Vec<u8>,
    is_to_panic: bool,
    is_burnt: bool,
}

impl Function for Fuse {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).unwrap_or_default();
        let (verb, word) = text.split_once(' ').ok_or("the configuration is a verb and a word")?;
        Ok(Self { word: word.as_bytes().to_vec(), is_to_panic: verb == "panic", is_burnt: false })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for mut packet in batch {
            self.is_burnt |= packet.data().windows(self.word.len()).any(|window| window == self.word);
            assert!(!(self.is_burnt && self.is_to_panic), "its client said so");
            if self.is_burnt {
                packet.data_mut().iter_mut().rev().take(CORRUPTED_BYTES).for_each(|byte| *byte = !*byte);
                packet.complete_checksums();
            }
            packet.send();
        }
    }
}

pinion_sdk::export!(Fuse);
