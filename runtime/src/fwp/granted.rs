//! What an FWP was granted of its tenant's keys and models, and what it submits their jobs by.

use pinion_guest::calls::nn::NnErrno;
use pinion_mma::id::FwpId;

use super::inference::{Inference, ModelGrants};
use super::keys::KeyGrants;
use crate::offload::{FwpOffload, OffloadPort};
use crate::tenants::scheduling_params::SchedulingParams;

static NO_KEYS: KeyGrants = KeyGrants::none();

/// See the module. Boxed, since most FWPs were granted nothing, and their context is touched with every packet.
#[derive(Default)]
pub struct Granted(Option<Box<Parts>>);

struct Parts {
    keys: KeyGrants,
    inference: Inference,
    /// None where nothing is done off the data path.
    offload: Option<FwpOffload>,
}

impl Granted {
    /// Grants an FWP keys and models. It submits its jobs by `port`, as its scheduling parameters have it.
    #[must_use]
    pub fn new(
        keys: &KeyGrants,
        models: &ModelGrants,
        port: Option<&OffloadPort>,
        (id, terms): (FwpId, &SchedulingParams),
    ) -> Self {
        if keys.is_empty() && models.is_empty() {
            return Self(None);
        }
        let offload = port.map(|port| FwpOffload::new(port.clone(), id, terms.clone()));
        Self(Some(Box::new(Parts { keys: keys.clone(), inference: Inference::new(models.clone()), offload })))
    }

    pub(crate) fn keys(&self) -> &KeyGrants {
        self.0.as_ref().map_or(&NO_KEYS, |parts| &parts.keys)
    }

    /// Returns its contexts for runs of models.
    ///
    /// # Errors
    /// [`NnErrno::InvalidArgument`] if it was granted nothing, as no number names a context then.
    pub(crate) fn inference(&self) -> Result<&Inference, NnErrno> {
        self.0.as_ref().map(|parts| &parts.inference).ok_or(NnErrno::InvalidArgument)
    }

    /// The same, to be changed.
    pub(crate) fn inference_mut(&mut self) -> Result<&mut Inference, NnErrno> {
        self.0.as_mut().map(|parts| &mut parts.inference).ok_or(NnErrno::InvalidArgument)
    }

    /// Returns what it submits jobs by, if it was granted something and has a port.
    pub(super) fn offload(&self) -> Option<&FwpOffload> {
        self.0.as_ref().and_then(|parts| parts.offload.as_ref())
    }
}
