//! What the user asks for.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::baseline::Wait;

/// Measures the transports beside what could be written by hand on this machine.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(crate) struct Options {
    /// A transport between two processes: shm, tcp, or any other that is built in (default: shm and tcp)
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Vec<String>,
    /// A size in bytes, with K, M or G for KiB, MiB or GiB (default: a few for each test)
    #[arg(long, value_name = "N")]
    pub(crate) size: Vec<Size>,
    /// A test (default: all)
    #[arg(long, value_name = "NAME")]
    pub(crate) test: Vec<Test>,
    /// Puts and gets go to an offset that is this many bytes beside a page
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..4096))]
    pub(crate) misalign: u16,
    /// How each side waits for the other
    #[arg(long, value_enum, default_value_t)]
    pub(crate) wait: Wait,
    /// Prints one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Draws the goodness of every test into an SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "baseline_only")]
    pub(crate) plot: Option<PathBuf>,
    /// Fewer batches and sizes: seconds instead of minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measures in N fresh processes and prints the medians over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..1000))]
    pub(crate) runs: u16,
    /// Measures only the baselines
    #[arg(long)]
    pub(crate) baseline_only: bool,
    /// Puts plain copies in our place on shm: every goodness should be near 1
    #[arg(long, hide = true, conflicts_with = "baseline_only")]
    pub(crate) self_check: bool,
    /// This many batches of each test, however few that are
    #[arg(long, hide = true)]
    pub(crate) batches: Option<u16>,
    /// Prints the rows of one run for the process that started it
    #[arg(long, hide = true)]
    pub(crate) rows: bool,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Test {
    /// A put that is waited for.
    PutFlush,
    /// A put and a signal, until the peer has seen both: one way.
    PutSignal,
    /// Puts, one after the other.
    PutBandwidth,
    /// A get.
    GetFlush,
    /// Gets, one after the other.
    GetBandwidth,
    /// An addition to a word that no other core uses.
    FetchAdd,
    /// A sum of f32 into the peer's memory.
    Accumulate,
    /// 15,000 segments, posted as one list.
    PostList,
    /// A new connection, until the first byte is delivered.
    Connect,
    /// From the kill of the peer until its failure is known.
    Detect,
}

impl Test {
    /// Its name on the command line and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PutFlush => "put_flush",
            Self::PutSignal => "put_signal",
            Self::PutBandwidth => "put_bandwidth",
            Self::GetFlush => "get_flush",
            Self::GetBandwidth => "get_bandwidth",
            Self::FetchAdd => "fetch_add",
            Self::Accumulate => "accumulate",
            Self::PostList => "post_list",
            Self::Connect => "connect",
            Self::Detect => "detect",
        }
    }

    /// Segments of [`Test::PostList`].
    pub(crate) const SEGMENTS: usize = 15_000;

    /// Bytes of the window that one operation of `size` bytes needs.
    pub(crate) fn span(self, size: usize) -> usize {
        match self {
            Self::PostList => size * Self::SEGMENTS * 2,
            Self::Detect => 0,
            _ => size,
        }
    }
}

impl Options {
    /// The tests that were asked for.
    pub(crate) fn tests(&self) -> Vec<Test> {
        if self.test.is_empty() { Test::value_variants().to_vec() } else { self.test.clone() }
    }

    /// The transports that were asked for.
    pub(crate) fn transports(&self) -> Vec<String> {
        if !self.transport.is_empty() {
            self.transport.clone()
        } else if self.self_check {
            vec!["shm".into()]
        } else {
            vec!["shm".into(), "tcp".into()]
        }
    }

    /// The sizes of a test, in bytes, each with room for it in `available` bytes of memory.
    pub(crate) fn sizes(&self, test: Test, available: usize) -> Vec<usize> {
        const K: usize = 1 << 10;
        const M: usize = 1 << 20;
        let usual: &[usize] = match test {
            Test::FetchAdd => return vec![8],
            Test::Connect => return vec![M],
            Test::Detect => return vec![64 * M],
            Test::PutFlush | Test::PutSignal | Test::GetFlush if self.quick => &[8],
            Test::PutFlush | Test::PutSignal | Test::GetFlush => &[8, 4 * K],
            Test::PutBandwidth | Test::GetBandwidth | Test::Accumulate if self.quick => {
                &[4 * K, 64 * K, M, 64 * M]
            }
            Test::Accumulate => &[4 * K, 64 * K, M, 16 * M, 64 * M],
            Test::PutBandwidth | Test::GetBandwidth => &[4 * K, 64 * K, M, 8 * M, 64 * M, 1 << 30],
            Test::PostList => &[256],
        };
        if self.size.is_empty() {
            return usual
                .iter()
                .copied()
                .filter(|&size| test.span(size).saturating_mul(4) <= available)
                .collect();
        }
        let mut sizes: Vec<usize> = self.size.iter().map(|size| size.0).collect();
        if test == Test::Accumulate {
            sizes.iter_mut().for_each(|size| *size &= !3);
        }
        sizes.retain(|&size| size > 0 || matches!(test, Test::PutFlush | Test::PutSignal | Test::GetFlush));
        sizes
    }
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        let number: usize =
            digits.parse().map_err(|_| "expected a number such as 8, 64K, 1M or 2G".to_owned())?;
        number
            .checked_mul(1 << shift)
            .filter(|&size| size <= 1 << 40)
            .map(Self)
            .ok_or_else(|| format!("{text} is more than 1024 GiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units_and_limits() {
        assert_eq!("8".parse(), Ok(Size(8)));
        assert_eq!("64k".parse(), Ok(Size(65_536)));
        assert_eq!("2G".parse(), Ok(Size(2 << 30)));
        for bad in ["", "K", "-1", "1.5M", "99999999G", "18446744073709551615K", "é"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_tests_are_those_of_the_command_line() {
        for test in Test::value_variants() {
            assert_eq!(test.to_possible_value().unwrap().get_name(), test.name());
        }
    }
}
