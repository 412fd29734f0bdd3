//! The data set: images of handwritten digits, shipped in the program.

use ndarray::{Array2, ArrayView2};
use safetensors::SafeTensors;

use super::Result;
use super::draw::{Stream, draw};

/// Pixels of an image.
pub(crate) const PIXELS: usize = 64;
/// The digits.
pub(crate) const CLASSES: usize = 10;
/// The brightest pixel.
const WHITE: f32 = 16.0;
/// One image of so many is for the test. The digits come as 0 to 9, again and again, in much of the file: a divisor of 10
/// would test some digits only.
const EVERY: usize = 7;

/// The file, as `data/README.md` describes it.
static FILE: &[u8] = include_bytes!("../../data/digits.safetensors");

/// Images, one a row, each pixel from 0 to 1, and their digits.
#[derive(Debug, Clone)]
pub(crate) struct Examples {
    /// [examples, pixels].
    pub(crate) images: Array2<f32>,
    /// The digit of each.
    pub(crate) labels: Vec<u8>,
}

impl Examples {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The examples with these numbers, in this order.
    fn select(&self, numbers: &[usize]) -> Self {
        Self {
            images: self.images.select(ndarray::Axis(0), numbers),
            labels: numbers.iter().map(|number| self.labels[*number]).collect(),
        }
    }
}

/// The data set, in its two parts.
#[derive(Debug)]
pub(crate) struct Digits {
    /// What the network learns from.
    pub(crate) train: Examples,
    /// What it is tested with, and never learns from.
    pub(crate) test: Examples,
}

impl Digits {
    /// Reads the data set.
    ///
    /// # Errors
    /// [`super::Error::Data`] when the file that was built in is not what it should be.
    pub(crate) fn load() -> Result<Self> {
        let file = SafeTensors::deserialize(FILE)?;
        let pixels = file.tensor("images")?.data();
        let labels = file.tensor("labels")?.data().to_vec();
        let images = ArrayView2::from_shape((labels.len(), PIXELS), pixels)?;
        let all = Examples { images: images.mapv(|pixel| f32::from(pixel) / WHITE), labels };
        let (test, train): (Vec<_>, Vec<_>) = (0..all.len()).partition(|number| number % EVERY == EVERY - 1);
        Ok(Self { train: all.select(&train), test: all.select(&test) })
    }

    /// One trainer's share of the examples of a step: those with the places `batch * trainer / trainers` to
    /// `batch * (trainer + 1) / trainers` of a batch that depends on the seed and the step alone.
    pub(crate) fn batch(
        &self,
        seed: u64,
        step: u64,
        batch: usize,
        trainer: usize,
        trainers: usize,
    ) -> Examples {
        let places = batch * trainer / trainers..batch * (trainer + 1) / trainers;
        let len = self.train.len() as u64;
        let numbers: Vec<_> =
            places.map(|place| (draw(seed, Stream::Batch(step), place as u64) % len) as usize).collect();
        self.train.select(&numbers)
    }
}
