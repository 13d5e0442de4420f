//! `pinion dev --read`: a capture's frames through the function, each burst when the one before has been answered for.
//!
//! A node's counters say when that is: each frame has come out, or was dropped and counted. Whatever a function keeps, or makes of
//! its own accord, they cannot say; then it is over when nothing has moved for a while.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pinion_control::manifest::Contents;
use pinion_control::model::{Chain, Match, Policy, Rule, RuleName, VlanId};

use super::account::Account;
use super::capture::{Captured, Frames, Sink};
use super::session::Session;
use super::wire::{Listening, Wire};
use super::{BadInput, Function, Replay, Which, node};
use crate::args::Format;

/// For so long functions may keep a burst's frames before the next goes in.
const BURST_PATIENCE: Duration = Duration::from_millis(20);
/// For so long nothing may have come when functions have answered with more frames than they got.
const LAST_PATIENCE: Duration = Duration::from_millis(100);
/// After so many looks in vain, the next ones are so far apart.
const QUICK_LOOKS: u32 = 4;
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// VLAN tags, from the outer one: none, one or two.
type Tags = (Option<VlanId>, Option<VlanId>);

/// Once from the capture's begin to its end.
pub(super) async fn once(function: &Function, replay: &Replay, format: Format) -> anyhow::Result<()> {
    let tags = tags_in(replay)?;
    if replay.write.as_ref().is_some_and(|write| is_same(&replay.read, write)) {
        let problem = "it is read: have what comes out written to another file".to_owned();
        return Err(BadInput::Capture { path: replay.read.clone(), problem }.into());
    }
    let folder = node::folder()?;
    let listening = Listening::new(folder.path(), function.ports()?)?;
    let mut session = Session::start_in(folder, function, &listening.ports_text(), format).await?;
    session.deploy(function, |contents| Ok(with_rules(function, replay, &tags, contents)?)).await?;
    let wire = listening.wired(Sink::new(replay.write.as_deref())?)?;
    let mut player = Player { session: &mut session, wire: &wire, put: 0, account: Account::default() };
    let mut frames = Frames::of(&replay.read)?.peekable();
    while frames.peek().is_some() {
        let burst = frames.by_ref().take(replay.burst).collect::<Result<Vec<_>, _>>()?;
        player.play(burst).await?;
    }
    let mut account = player.finish(replay.linger).await?;
    session.stop().await?;
    let came = wire.finish()?;
    account.sent = came.frames;
    account.replies = Some(came.replies);
    account.print(format)
}

/// Reads the whole capture once, so that one that is damaged is refused before anything is built.
fn tags_in(replay: &Replay) -> Result<BTreeSet<Tags>, BadInput> {
    let mut tags = BTreeSet::from([(None, None)]);
    for captured in Frames::of(&replay.read)? {
        tags.insert(tags_of(&captured?.frame));
    }
    Ok(tags)
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// As a node reads them: a tag with a priority only is none.
fn tags_of(frame: &[u8]) -> Tags {
    let (mut at, mut tags) = (12, Vec::new());
    while let Some([a, b, c, d]) = frame.get(at..).and_then(|rest| rest.first_chunk())
        && matches!(u16::from_be_bytes([*a, *b]), 0x8100 | 0x88a8)
    {
        tags.extend(VlanId::new(u16::from_be_bytes([*c, *d]) & 0xfff).ok());
        at += 4;
    }
    (tags.first().copied(), tags.get(1).copied())
}

/// The manifest with rules that send each frame to the chain, unless its own rules are to say.
fn with_rules(
    function: &Function,
    replay: &Replay,
    tags: &BTreeSet<Tags>,
    mut contents: Contents,
) -> Result<Contents, BadInput> {
    let Which::AllTo(name) = &replay.which else { return Ok(contents) };
    let chain = match (&contents.chains[..], name) {
        ([only], None) => only,
        (chains, Some(name)) => chains
            .iter()
            .find(|chain| chain.name == *name)
            .ok_or_else(|| function.unclear(format!("it has no chain {name}")))?,
        ([], None) => return Err(function.unclear("it has no chain for frames to go through".to_owned())),
        (chains, None) => {
            let names: Vec<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
            let problem = format!("it has the chains {}: say by --chain which is to get the frames", names.join(", "));
            return Err(function.unclear(problem));
        }
    };
    let own = contents.rules.iter().find(|rule| rule.tenant == chain.tenant && rule.chain == chain.name);
    let policy = own.map_or(Policy::Shared, |rule| rule.policy);
    let rules = tags.iter().enumerate().map(|(at, tags)| rule_for(at, *tags, chain, policy)).collect();
    contents.rules = rules;
    Ok(contents)
}

fn rule_for(at: usize, (vlan, inner_vlan): Tags, chain: &Chain, policy: Policy) -> Rule {
    Rule {
        tenant: chain.tenant.clone(),
        name: RuleName::new(format!("frames-{at}")).expect("it is a rule's name"),
        priority: 0,
        matcher: Match { vlan, inner_vlan, ..Match::default() },
        policy,
        chain: chain.name.clone(),
    }
}

/// Puts frames in, and waits for what becomes of them.
struct Player<'a> {
    session: &'a mut Session,
    wire: &'a Wire,
    put: u64,
    account: Account,
}

impl Player<'_> {
    async fn play(&mut self, mut burst: Vec<Captured>) -> anyhow::Result<()> {
        // No frame on a wire is empty.
        burst.retain(|captured| !captured.frame.is_empty());
        self.wire.put(&burst)?;
        self.put += burst.len() as u64;
        self.settle(BURST_PATIENCE).await
    }

    /// Waits until each frame is answered for, or nothing has moved for so long.
    async fn settle(&mut self, patience: Duration) -> anyhow::Result<()> {
        let (mut moved, mut looks) = (Instant::now(), 0);
        loop {
            let account = self.session.account().await?;
            if account != self.account {
                self.account = account;
                moved = Instant::now();
            }
            let all_came = self.wire.came().frames >= self.account.sent;
            if (all_came && self.account.answered() >= self.put) || moved.elapsed() > patience {
                return Ok(());
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        }
    }

    /// Waits for all that is to come; what became of the frames.
    async fn finish(mut self, linger: Duration) -> anyhow::Result<Account> {
        self.settle(linger).await?;
        let mut counted = self.account.answered();
        // More than came: a function copies frames, or makes some, and there may be more of them.
        while counted > self.put {
            tokio::time::sleep(LAST_PATIENCE).await;
            self.account = self.session.account().await?;
            if self.account.answered() == counted {
                break;
            }
            counted = self.account.answered();
        }
        self.account.received = self.put;
        self.account.kept = Some(self.put.saturating_sub(counted));
        Ok(self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_a_node_does() {
        let frame = |words: &[u16]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            [&[0; 12], &bytes[..]].concat()
        };
        let vlan = |id| VlanId::new(id).ok();
        assert_eq!(tags_of(&frame(&[0x0800])), (None, None));
        assert_eq!(tags_of(&frame(&[0x8100, 0xe064, 0x0800])), (vlan(100), None));
        assert_eq!(tags_of(&frame(&[0x88a8, 100, 0x8100, 20, 0x0800])), (vlan(100), vlan(20)));
        assert_eq!(tags_of(&frame(&[0x8100, 0xe000, 0x0800])), (None, None));
        assert_eq!(tags_of(&[0; 13]), (None, None));
    }
}
