//! Refuses every configuration, with a line in the log.

use pinion_sdk::{Batch, Function, InitError};

struct ConfigRefuser;

impl Function for ConfigRefuser {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        Err(InitError::new(format!("config_refuser refuses {:?}", String::from_utf8_lossy(config))))
    }

    fn handle(&mut self, _batch: Batch<'_>) {}
}

pinion_sdk::export!(ConfigRefuser);
