//! Key agreement by X25519 (RFC 7748; in TLS RFC 8446, section 7.4.2, and RFC 8422, section 5.11).

use curve25519_dalek::montgomery::MontgomeryPoint;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved};
use zeroize::Zeroizing;

/// The group.
#[derive(Debug)]
pub(crate) struct X25519;

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut secret = Zeroizing::new([0; 32]);
        pinion_sdk::random::fill(&mut *secret);
        let public = MontgomeryPoint::mul_base_clamped(*secret).to_bytes();
        Ok(Box::new(Exchange { secret, public }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchange {
    secret: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer: [u8; 32] = peer.try_into().map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        let shared = Zeroizing::new(MontgomeryPoint(peer).mul_clamped(*self.secret).to_bytes());
        // A point of small order: RFC 7748, section 6.1.
        if shared.iter().fold(0, |sum, byte| sum | byte) == 0 {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        Ok(SharedSecret::from(&shared[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}
