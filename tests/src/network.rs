//! Hosts that are network namespaces, joined by a switch: its cables can be cut, unplugged, slowed and made lossy.
//!
//! Everything is made by `ip` and `tc` as root, inside namespaces of its own with the test's process number in their
//! names, and is removed when the [`Network`] is dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use transom::{Secret, StoreServer, Team, TeamBuilder};

use crate::process::{Ranks, Start};

const PREFIX: &str = "transom-test";
const TEAM: &str = "TRANSOM_TEST_TEAM";
/// The switch's own address is the last one.
const SWITCH: usize = 253;

/// Which kinds of addresses a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    Both,
}

/// Hosts on one switch, with a store that all of them reach.
#[derive(Debug)]
pub struct Network {
    name: String,
    hosts: Vec<Family>,
    secret: Secret,
    server: Option<StoreServer>,
    /// How many teams were started.
    teams: AtomicU32,
}

/// The team of this rank.
///
/// # Errors
/// As for [`Team::builder_from_env`].
pub fn team() -> transom::Result<TeamBuilder> {
    Ok(Team::builder_from_env()?.name(&std::env::var(TEAM).unwrap()))
}

/// The address of a host.
#[must_use]
pub fn v4(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

/// The other address of a host.
#[must_use]
pub fn v6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

impl Network {
    /// Hosts with addresses of both families. `None`, with a line that says why: only root can make them.
    #[must_use]
    pub fn of(hosts: usize) -> Option<Self> {
        Self::of_families(&vec![Family::Both; hosts])
    }

    /// As [`Network::of`], with these addresses.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "the reason for which a test did nothing")]
    pub fn of_families(hosts: &[Family]) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: only root can make network namespaces");
            return None;
        }
        remove_those_of_the_dead();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}", std::process::id());
        let secret = Secret::random().unwrap();
        let mut network =
            Self { name, hosts: hosts.to_vec(), secret, server: None, teams: AtomicU32::new(0) };
        network.build();
        Some(network)
    }

    fn build(&mut self) {
        let switch = self.space(SWITCH);
        run("ip", &["netns", "add", &switch]);
        self.ip(SWITCH, "link add br0 type bridge");
        self.give(SWITCH, "br0", Family::Both);
        for (host, family) in self.hosts.clone().into_iter().enumerate() {
            run("ip", &["netns", "add", &self.space(host)]);
            self.ip(SWITCH, &format!("link add p{host} type veth peer name eth0 netns {}", self.space(host)));
            self.ip(SWITCH, &format!("link set p{host} master br0 up"));
            self.ip(host, "link set lo up");
            self.give(host, "eth0", family);
        }
        self.secret.write_file(self.secret_file()).unwrap();
        let secret = self.secret.clone();
        self.server = Some(
            self.inside(SWITCH, || StoreServer::bind((Ipv6Addr::UNSPECIFIED, 0).into(), &secret).unwrap()),
        );
    }

    fn give(&self, host: usize, device: &str, family: Family) {
        self.ip(host, &format!("link set {device} up"));
        if family != Family::V6 {
            self.ip(host, &format!("addr add {}/24 dev {device}", v4(host)));
        }
        if family != Family::V4 {
            self.ip(host, &format!("addr add {}/64 dev {device} nodad", v6(host)));
        }
    }

    fn space(&self, host: usize) -> String {
        if host == SWITCH { format!("{}-s", self.name) } else { format!("{}-{host}", self.name) }
    }

    fn secret_file(&self) -> PathBuf {
        std::env::temp_dir().join(&self.name)
    }

    /// Runs `ip` with these words on a host.
    pub fn ip(&self, host: usize, words: &str) {
        let space = self.space(host);
        run("ip", &["-n", &space].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    }

    fn tc(&self, host: usize, words: &str) {
        let space = self.space(host);
        run("tc", &["-n", &space].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    }

    /// Calls `body` on a thread of this host.
    pub fn inside<T: Send>(&self, host: usize, body: impl FnOnce() -> T + Send) -> T {
        let space = std::fs::File::open(format!("/run/netns/{}", self.space(host))).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The variable that gives the job's secret to a rank.
    #[must_use]
    pub fn secret_variable(&self) -> (String, String) {
        ("TRANSOM_SECRET_FILE".into(), self.secret_file().to_str().unwrap().to_owned())
    }

    /// Where hosts with these addresses reach the store.
    #[must_use]
    pub fn store(&self, family: Family) -> SocketAddr {
        let port = self.server.as_ref().unwrap().address().port();
        if family == Family::V6 { (v6(SWITCH), port).into() } else { (v4(SWITCH), port).into() }
    }

    /// The address of a host, IPv4 where it has one.
    #[must_use]
    pub fn address(&self, host: usize) -> IpAddr {
        if self.hosts[host] == Family::V6 { v6(host).into() } else { v4(host).into() }
    }

    /// How rank `rank` of `size` is started on this host, by a team from the environment: `specs` are its transports,
    /// in which `HERE` stands for the host's address and any port.
    #[must_use]
    pub fn rank(&self, host: usize, rank: usize, size: usize, specs: &str) -> Start {
        let specs = specs.replace("HERE", &SocketAddr::new(self.address(host), 0).to_string());
        let under = vec!["nsenter".into(), format!("--net=/run/netns/{}", self.space(host))];
        let variables = [
            ("TRANSOM_RANK", rank.to_string()),
            ("TRANSOM_SIZE", size.to_string()),
            ("TRANSOM_STORE", format!("tcp://{}", self.store(self.hosts[host]))),
            ("TRANSOM_TRANSPORTS", specs),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).into_iter();
        Start { under, variables: variables.chain([self.secret_variable()]).collect() }
    }

    /// Starts one rank on each host, reached by tcp.
    #[must_use]
    pub fn start(&self, test: &str) -> Ranks {
        let size = self.hosts.len();
        self.start_each(test, (0..size).map(|host| self.rank(host, host, size, "tcp:HERE")).collect())
    }

    /// Starts the ranks of a team of its own, whose name [`team`] knows.
    #[must_use]
    pub fn start_each(&self, test: &str, mut starts: Vec<Start>) -> Ranks {
        let number = self.teams.fetch_add(1, Ordering::Relaxed);
        for start in &mut starts {
            start.variables.push((TEAM.into(), number.to_string()));
        }
        Ranks::start_each(test, &starts)
    }

    /// Whatever goes to this host and comes from it is lost from now on, and nobody is told.
    pub fn cut(&self, host: usize) {
        self.deafen(host);
        self.tc(host, "qdisc replace dev eth0 root blackhole");
    }

    /// Whatever goes to this host is lost from now on, and nobody is told.
    pub fn deafen(&self, host: usize) {
        self.tc(SWITCH, &format!("qdisc replace dev p{host} root blackhole"));
    }

    /// Pulls the cable of this host.
    pub fn unplug(&self, host: usize) {
        self.ip(SWITCH, &format!("link set p{host} down"));
    }

    /// Puts the cable of this host in again.
    pub fn plug(&self, host: usize) {
        self.ip(SWITCH, &format!("link set p{host} up"));
    }

    /// Lets no more than this through to this host: `1mbit`.
    pub fn slow(&self, host: usize, rate: &str) {
        self.tc(SWITCH, &format!("qdisc replace dev p{host} root tbf rate {rate} burst 32kb latency 200ms"));
    }

    /// Loses this many in a thousand of the packets to this host, and as many of those from it.
    pub fn lose(&self, host: usize, per_mille: u32) {
        // A filter of four instructions: a random word, compared; 2 drops, -1 goes on. The queue that loses (netem) is
        // missing from many kernels.
        let below = (u64::from(u32::MAX) * u64::from(per_mille) / 1000) as u32;
        let random = u32::MAX - 4095 + 56;
        let code = format!("4,32 0 0 {random},53 1 0 {below},6 0 0 2,6 0 0 {}", u32::MAX);
        // At the switch, so that no host knows of it.
        self.tc(SWITCH, &format!("qdisc add dev p{host} clsact"));
        let (space, device) = (self.space(SWITCH), format!("p{host}"));
        for way in ["egress", "ingress"] {
            let filter = ["-n", &space, "filter", "add", "dev", &device, way, "bpf", "da", "bytecode", &code];
            run("tc", &filter);
        }
    }

    /// How many packets this host has sent again.
    #[must_use]
    pub fn sent_again(&self, host: usize) -> u64 {
        let counts = self.inside(host, || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
        let mut tcp = counts.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' '));
        let (names, numbers) = (tcp.next().unwrap(), tcp.next().unwrap());
        let found = names.zip(numbers).find(|(name, _)| *name == "RetransSegs");
        found.unwrap().1.parse().unwrap()
    }

    /// The cable of this host is good and fast again.
    pub fn mend(&self, host: usize) {
        for (at, device) in [(SWITCH, format!("p{host}")), (host, "eth0".to_owned())] {
            for kind in ["root", "clsact"] {
                // There may be none.
                let _ = Command::new("tc")
                    .args(["-n", &self.space(at), "qdisc", "del", "dev", &device, kind])
                    .output();
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_file(self.secret_file());
        for host in (0..self.hosts.len()).chain([SWITCH]) {
            // Some may be missing, after a panic.
            let _ = Command::new("ip").args(["netns", "del", &self.space(host)]).output();
        }
    }
}

/// Removes what tests left behind that were killed.
fn remove_those_of_the_dead() {
    let Ok(found) = std::fs::read_dir("/run/netns") else { return };
    for name in found.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let Some((pid, _)) = name.strip_prefix(PREFIX).and_then(|n| n.strip_prefix('-')?.split_once('-'))
        else {
            continue;
        };
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            // Another test may do the same.
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
            let _ =
                name.rsplit_once('-').map(|(name, _)| std::fs::remove_file(std::env::temp_dir().join(name)));
        }
    }
}

fn run(program: &str, arguments: &[&str]) {
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.unwrap_or_else(|e| panic!("{program} cannot be run: {e} (install iproute2)"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{program} {}: {said}", arguments.join(" "));
}
