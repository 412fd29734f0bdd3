//! Training of a network on the digits, data parallel: the gradients are averaged, and the weights spread, through a
//! window.
//!
//! Every trainer has all weights and computes the gradient of its share of each batch. The rows of the state are shared
//! out as [`Layout::shard`] does it: a trainer sums the gradients of its rows, keeps their moments, moves them, and
//! puts them to all others. So what a trainer owns is what it saves.

mod adam;
mod data;
mod draw;
mod exchange;
mod network;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::{Duration, Instant};

use transom::Team;
use transom_checkpoint::{Layout, Part, Tensor};
use zerocopy::IntoBytes;

use adam::Adam;
use data::Digits;
use exchange::Exchange;
use network::Network;

/// What the moments' names begin with.
const MOMENTS: [&str; 2] = ["adam.m.", "adam.v."];

/// What a training does: the same at every trainer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Where the first weights and the batches come from.
    pub(crate) seed: u64,
    /// The width of the network's two layers in the middle.
    pub(crate) width: usize,
    /// How many examples a step learns from, at all trainers together.
    pub(crate) batch: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, width: 4096, batch: 256 }
    }
}

/// What cannot be trained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A trainer, or the way to it, failed; the state is in the middle of a step.
    #[error(transparent)]
    Window(#[from] transom::Error),
    /// An option that makes no sense.
    #[error("{name} is 0: a network needs at least 1")]
    Zero {
        /// Which one.
        name: &'static str,
    },
    /// Rows of the state that are another trainer's, or nobody's.
    #[error("rows {} to {} of tensor {} are not trainer {trainer}'s", part.rows.start, part.rows.end, part.tensor)]
    NotOwned {
        /// The rows.
        part: Part,
        /// Who was asked for them.
        trainer: u32,
    },
    /// The data set in the program is broken.
    #[error("the data set: {0}")]
    Data(#[from] safetensors::SafeTensorError),
    /// A tensor of another size than its shape says.
    #[error("a matrix: {0}")]
    Shape(#[from] ndarray::ShapeError),
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// What a step did, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// The mean loss over the batch, before the step; the same at every trainer.
    pub(crate) loss: f64,
    /// How long it put, waited for the others, summed and read.
    pub(crate) exchange: Duration,
}

/// One trainer of a network.
#[derive(Debug)]
pub(crate) struct Training {
    options: Options,
    digits: Digits,
    network: Network,
    layout: Layout,
    exchange: Exchange,
    step: u64,
    /// All weights.
    weights: Vec<f32>,
    /// The gradients of all weights, of this trainer's share of the batch.
    gradients: Vec<f32>,
    /// Both moments of the weights that are owned here, one owned range after the other.
    moments: [Vec<f32>; 2],
}

impl Training {
    /// A network that has learned nothing; the team is the trainers, and no others. Collective.
    ///
    /// # Errors
    /// [`Error::Zero`]; [`Error::Window`] as for [`transom::WindowBuilder::build`].
    pub(crate) fn new(team: &Team, options: Options) -> Result<Self> {
        for (name, value) in [("width", options.width), ("batch", options.batch)] {
            if value == 0 {
                return Err(Error::Zero { name });
            }
        }
        let network = Network::new(options.width);
        let weights = Layout { tensors: network.tensors() };
        let trainers = team.size() as usize;
        let owned =
            (0..trainers).map(|trainer| places(&weights, &weights.shard(trainer, trainers))).collect();
        let exchange = Exchange::new(team, network.len(), owned)?;
        let moments = vec![0.0; exchange.owned().iter().map(Range::len).sum()];
        Ok(Self {
            options,
            digits: Digits::load()?,
            layout: with_moments(weights),
            exchange,
            step: 0,
            weights: network.first_weights(options.seed),
            gradients: vec![0.0; network.len()],
            moments: [moments.clone(), moments],
            network,
        })
    }

    /// The tensors of the state: all weights, then their first moments, then their second.
    #[cfg(test)]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many steps the network has learned.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.step
    }

    /// The rows of the state that are this trainer's.
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.layout.shard(self.exchange.rank() as usize, self.exchange.size() as usize)
    }

    /// The bytes of rows that are this trainer's: one of [`Training::parts`], or less of it.
    ///
    /// # Errors
    /// [`Error::NotOwned`].
    pub(crate) fn part(&self, part: &Part) -> Result<&[u8]> {
        let (kind, place) = self.find(part)?;
        let tensors = [&self.weights, &self.moments[0], &self.moments[1]];
        Ok(tensors[kind][place].as_bytes())
    }

    /// Takes the state of a saved step: `fill` is given [`Training::parts`], each with the memory for its bytes. Then the
    /// trainers give each other their weights. Collective.
    ///
    /// # Errors
    /// Those of `fill`; [`Error::Window`]. The state is a mix then: load again, or begin anew.
    pub(crate) fn load<E: From<Error>>(
        &mut self,
        step: u64,
        fill: impl FnOnce(Vec<(Part, &mut [u8])>) -> Result<(), E>,
    ) -> Result<(), E> {
        fill(self.parts_mut())?;
        self.step = step;
        Ok(self.spread()?)
    }

    /// [`Training::parts`] with their bytes.
    fn parts_mut(&mut self) -> Vec<(Part, &mut [u8])> {
        let parts = self.parts();
        let owned = self.exchange.owned();
        let [m, v] = &mut self.moments;
        let weights = cut(&mut self.weights, owned.iter().cloned());
        let [m, v] = [m, v].map(|moments| {
            cut(
                moments,
                owned.iter().scan(0, |end, place| {
                    let start = *end;
                    *end += place.len();
                    Some(start..*end)
                }),
            )
        });
        let bytes = [weights, m, v].into_iter().flatten().map(IntoBytes::as_mut_bytes);
        parts.into_iter().zip(bytes).collect()
    }

    /// Puts the own weights to all trainers, and takes theirs.
    fn spread(&mut self) -> Result<()> {
        // Somebody may still be reading the weights of the last step.
        self.exchange.barrier()?;
        for place in self.exchange.owned() {
            self.exchange.put_weights(place.start, &self.weights[place.clone()])?;
        }
        Ok(self.exchange.exchange_weights(&mut self.weights)?)
    }

    /// Learns from the next batch. Collective. Ends the same, bit for bit, at every trainer, and in every run with as many.
    ///
    /// # Errors
    /// [`Error::Window`]: names the trainer that failed, or that did not come within the team's deadline. The state is in the
    /// middle of a step then.
    pub(crate) fn step(&mut self) -> Result<Step> {
        let begin = Instant::now();
        let step = self.step + 1;
        let Options { seed, batch, .. } = self.options;
        let (rank, size) = (self.exchange.rank() as usize, self.exchange.size() as usize);
        let examples = self.digits.batch(seed, step, batch, rank, size);
        let own = self.network.loss(&self.weights, &examples, batch, &mut self.gradients)?;
        let mut compute = begin.elapsed();

        self.exchange.exchange_gradients(&self.gradients, own)?;
        let loss = self.exchange.loss(own)?;
        let adam = Adam::at(step);
        let mut at = 0;
        for place in self.exchange.chunks() {
            let packed = at..at + place.len();
            at = packed.end;
            let gradients = self.exchange.sum(packed.start, &self.gradients[place.clone()])?;
            let since = Instant::now();
            let [m, v] = &mut self.moments;
            let weights = &mut self.weights[place.clone()];
            adam.update(weights, &mut m[packed.clone()], &mut v[packed], gradients);
            compute += since.elapsed();
            self.exchange.put_weights(place.start, weights)?;
        }
        self.exchange.exchange_weights(&mut self.weights)?;
        self.step = step;
        Ok(Step { loss, exchange: begin.elapsed().saturating_sub(compute) })
    }

    /// Which share of the test images the network names right, from 0 to 1.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub(crate) fn accuracy(&self) -> Result<f32> {
        let right = self.network.right(&self.weights, &self.digits.test)?;
        Ok(right as f32 / self.digits.test.len() as f32)
    }

    /// Ends the training together with the other trainers. One that goes without this has failed, for the others.
    ///
    /// # Errors
    /// [`Error::Window`] as for [`transom::Window::close`].
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.exchange.close()?)
    }

    /// Where rows are: in the weights or one of their moments, and the place there.
    fn find(&self, part: &Part) -> Result<(usize, Range<usize>)> {
        let tensors = self.layout.tensors.len() / (1 + MOMENTS.len());
        let (kind, tensor) = (part.tensor / tensors, part.tensor % tensors);
        let mut packed = 0;
        if part.tensor < self.layout.tensors.len()
            && let [place] = &places(&self.layout, &[Part { tensor, rows: part.rows.clone() }])[..]
        {
            for owned in self.exchange.owned() {
                if owned.start <= place.start && place.end <= owned.end {
                    return match kind {
                        0 => Ok((kind, place.clone())),
                        _ => {
                            let start = packed + place.start - owned.start;
                            Ok((kind, start..start + place.len()))
                        }
                    };
                }
                packed += owned.len();
            }
        }
        Err(Error::NotOwned { part: part.clone(), trainer: self.exchange.rank() })
    }
}

/// The tensors of the state of a network: all weights, then their first moments, then their second.
pub(crate) fn layout(width: usize) -> Layout {
    with_moments(Layout { tensors: Network::new(width).tensors() })
}

/// The layout with both moments behind the weights.
fn with_moments(weights: Layout) -> Layout {
    let moments = MOMENTS.iter().flat_map(|prefix| {
        weights
            .tensors
            .iter()
            .map(move |tensor| Tensor { name: format!("{prefix}{}", tensor.name), ..tensor.clone() })
    });
    Layout { tensors: weights.tensors.iter().cloned().chain(moments).collect() }
}

/// Where parts are when the tensors lie one after the other, counted in elements.
fn places(layout: &Layout, parts: &[Part]) -> Vec<Range<usize>> {
    let elements = |tensor: &Tensor| tensor.size() / size_of::<f32>();
    parts
        .iter()
        .map(|part| {
            let before: usize = layout.tensors[..part.tensor].iter().map(elements).sum();
            let row = layout.tensors[part.tensor].row_size() / size_of::<f32>();
            before + part.rows.start * row..before + part.rows.end * row
        })
        .collect()
}

/// These places of a slice; they are in order, and none overlaps another.
fn cut(mut rest: &mut [f32], places: impl Iterator<Item = Range<usize>>) -> Vec<&mut [f32]> {
    let mut at = 0;
    let mut pieces = Vec::new();
    for place in places {
        let (_, behind) = rest.split_at_mut(place.start - at);
        let (piece, behind) = behind.split_at_mut(place.len());
        pieces.push(piece);
        (rest, at) = (behind, place.end);
    }
    pieces
}
