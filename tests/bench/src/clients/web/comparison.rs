//! A node beside its peer under the same loads: as much as each answers, and an open loop that both can bear.

use std::net::SocketAddrV4;

use anyhow::{Context, ensure};

use crate::clients::web::load::{Clients, Exchange, Load};
use crate::clients::web::wire::Speaks;
use crate::figures::ping::pin_here;
use crate::measurement::run::Run;
use crate::systems::server::Server;

/// The open loop has this part of the smaller of both rates.
const OPEN_LOAD: f64 = 0.7;

/// What is compared.
pub(crate) struct Comparison<'a> {
    pub(crate) run: &'a Run,
    /// Numbers of clients.
    pub(crate) counts: &'a [u16],
    pub(crate) to: SocketAddrV4,
    pub(crate) speaks: &'a Speaks,
    pub(crate) exchanges: &'a [Exchange],
    /// The peer's name.
    pub(crate) peer: &'static str,
}

/// The results of a number of clients: the node's, then its peer's.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) clients: u16,
    pub(crate) most: [Load; 2],
    pub(crate) open: [Load; 2],
    /// The load of the open loop.
    pub(crate) offered_rps: f64,
}

impl Comparison<'_> {
    /// How many steps of progress this has.
    pub(crate) fn steps(counts: &[u16]) -> usize {
        4 * counts.len()
    }

    /// Measures both, of which only one runs at a time.
    ///
    /// # Errors
    /// A server can't be started, or a reply is not right.
    pub(crate) fn measure(
        &self,
        node: impl Fn() -> anyhow::Result<Server>,
        peer: impl Fn() -> anyhow::Result<Server>,
    ) -> anyhow::Result<Vec<Compared>> {
        let most = |who: &str, server: &mut Server| {
            self.loads(who, "as many requests as it answers", server, |clients, _| clients.saturate(self.run.time))
        };
        let node_most = most("Pinion", &mut node()?)?;
        let mut running_peer = peer()?;
        let peer_most = most(self.peer, &mut running_peer)?;
        let smaller = node_most.iter().zip(&peer_most).map(|(node, peer)| node.per_second().min(peer.per_second()));
        let rates: Vec<f64> = smaller.map(|rate| OPEN_LOAD * rate).collect();
        ensure!(rates.iter().all(|rate| *rate > 0.0), "a server answers nothing");
        let open = |who: &str, server: &mut Server| {
            self.loads(who, "an open loop", server, |clients, row| clients.offer(rates[row], self.run.time))
        };
        let peer_open = open(self.peer, &mut running_peer)?;
        drop(running_peer);
        let node_open = open("Pinion", &mut node()?)?;
        let most = node_most.into_iter().zip(peer_most);
        let open = node_open.into_iter().zip(peer_open);
        let all = self.counts.iter().zip(&rates).zip(most.zip(open));
        let compared = all.map(|((&clients, &offered_rps), (most, open))| Compared {
            clients,
            most: most.into(),
            open: open.into(),
            offered_rps,
        });
        Ok(compared.collect())
    }

    /// Measures a server with each number of clients, which come from new addresses.
    fn loads(
        &self,
        who: &str,
        what: &str,
        server: &mut Server,
        mut load: impl FnMut(&mut Clients<'_>, usize) -> anyhow::Result<Load> + Send,
    ) -> anyhow::Result<Vec<Load>> {
        let Server { lab, addresses, .. } = server;
        let clients = || -> anyhow::Result<Vec<Load>> {
            pin_here(self.run.cores.first)?;
            let each = self.counts.iter().enumerate().map(|(row, count)| {
                self.run.progress.step(&format!("{count} clients of {who}: {what}"));
                let count = usize::from(*count);
                let mut clients = Clients::connect(count, addresses, self.to, self.speaks, self.exchanges)?;
                load(&mut clients, row).with_context(|| format!("{count} clients"))
            });
            each.collect()
        };
        let loads = lab.client.inside(clients).with_context(|| who.to_owned());
        server.check()?;
        loads
    }
}
