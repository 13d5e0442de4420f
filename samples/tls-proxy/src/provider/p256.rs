//! Key agreement by P-256 (SEC 1, section 3.3.1; in TLS RFC 8446, section 7.4.2, and RFC 8422, section 5.10).

use p256::ecdh::EphemeralSecret;
use p256::elliptic_curve::rand_core::{self, CryptoRng, RngCore};
use p256::{EncodedPoint, PublicKey};
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// Bytes of an uncompressed point, and the first of them. TLS 1.3 knows no other form, and this server offers none in TLS 1.2.
const POINT_BYTES: usize = 65;
/// See [`POINT_BYTES`].
const UNCOMPRESSED: u8 = 4;

/// The group.
#[derive(Debug)]
pub(crate) struct Secp256r1;

impl SupportedKxGroup for Secp256r1 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = EphemeralSecret::random(&mut Node);
        let public = EncodedPoint::from(secret.public_key());
        Ok(Box::new(Exchange { secret, public }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

struct Exchange {
    secret: EphemeralSecret,
    public: EncodedPoint,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        if peer.len() != POINT_BYTES || peer[0] != UNCOMPRESSED {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        // Refuses what is no point of the curve.
        let peer = PublicKey::from_sec1_bytes(peer).map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        Ok(SharedSecret::from(&self.secret.diffie_hellman(&peer).raw_secret_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

/// The node's random bytes.
struct Node;

impl RngCore for Node {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, buffer: &mut [u8]) {
        pinion_sdk::random::fill(buffer);
    }

    fn try_fill_bytes(&mut self, buffer: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(buffer);
        Ok(())
    }
}

impl CryptoRng for Node {}
