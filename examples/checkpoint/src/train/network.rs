//! The network: 64 -> width -> width -> 10, ReLU between the layers, cross-entropy of a softmax behind them.
//!
//! All its weights are one slice of f32, tensor after tensor, and so are their gradients.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Zip};
use transom_checkpoint::{Dtype, Tensor};

use super::Result;
use super::data::{CLASSES, Examples, PIXELS};
use super::draw::{Stream, draw_even};

/// A fully connected network of three layers.
#[derive(Debug)]
pub(crate) struct Network {
    layers: [Layer; 3],
}

/// One layer: its size, and where its tensors are in the slice.
#[derive(Debug)]
struct Layer {
    inputs: usize,
    outputs: usize,
    /// [outputs, inputs].
    weight: Range<usize>,
    /// [outputs].
    bias: Range<usize>,
}

impl Network {
    /// A network whose two layers in the middle have this width.
    pub(crate) fn new(width: usize) -> Self {
        let mut end = 0;
        let layers = [(PIXELS, width), (width, width), (width, CLASSES)].map(|(inputs, outputs)| {
            let weight = end..end + inputs * outputs;
            let bias = weight.end..weight.end + outputs;
            end = bias.end;
            Layer { inputs, outputs, weight, bias }
        });
        Self { layers }
    }

    /// Its tensors, in the order of the slice.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        let tensor = |name, shape| Tensor { name, dtype: Dtype::F32, shape };
        self.layers
            .iter()
            .zip(1..)
            .flat_map(|(layer, number)| {
                [
                    tensor(format!("layer{number}.weight"), vec![layer.outputs, layer.inputs]),
                    tensor(format!("layer{number}.bias"), vec![layer.outputs]),
                ]
            })
            .collect()
    }

    /// How many weights it has, biases included.
    pub(crate) fn len(&self) -> usize {
        self.layers.iter().map(|layer| layer.weight.len() + layer.bias.len()).sum()
    }

    /// The weights that it begins with: even, with the variance `2 / inputs` (He et al., 2015); biases are 0.
    pub(crate) fn first_weights(&self, seed: u64) -> Vec<f32> {
        let mut weights = vec![0.0; self.len()];
        for (layer, number) in self.layers.iter().zip(0..) {
            let bound = (6.0 / layer.inputs as f32).sqrt();
            for (weight, index) in weights[layer.weight.clone()].iter_mut().zip(0..) {
                *weight = bound * draw_even(seed, Stream::Weights(number), index);
            }
        }
        weights
    }

    /// What each layer gives out for these images; the last are the scores of the digits.
    fn forward(&self, weights: &[f32], images: ArrayView2<'_, f32>) -> Result<[Array2<f32>; 3]> {
        let [first, second, third] = &self.layers;
        let a = first.forward(weights, images)?.mapv_into(relu);
        let b = second.forward(weights, a.view())?.mapv_into(relu);
        let scores = third.forward(weights, b.view())?;
        Ok([a, b, scores])
    }

    /// The loss of these examples and its gradient, both divided by `batch`: they are a part of a batch of that many.
    pub(crate) fn loss(
        &self,
        weights: &[f32],
        examples: &Examples,
        batch: usize,
        gradient: &mut [f32],
    ) -> Result<f64> {
        let images = examples.images.view();
        let [first, second, third] = &self.layers;
        let [a, b, mut scores] = self.forward(weights, images)?;
        let loss = cross_entropy(&mut scores, &examples.labels, batch);
        let behind_third = scores;
        third.gradient(b.view(), &behind_third, gradient)?;
        let behind_second = third.backward(weights, &behind_third, &b)?;
        second.gradient(a.view(), &behind_second, gradient)?;
        let behind_first = second.backward(weights, &behind_second, &a)?;
        first.gradient(images, &behind_first, gradient)?;
        Ok(loss)
    }

    /// How many of these examples get the highest score for their own digit.
    pub(crate) fn right(&self, weights: &[f32], examples: &Examples) -> Result<usize> {
        let [_, _, scores] = self.forward(weights, examples.images.view())?;
        let best = |scores: ArrayView1<'_, f32>| {
            scores.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(digit, _)| digit)
        };
        let labels = examples.labels.iter().map(|label| Some(usize::from(*label)));
        Ok(scores.outer_iter().map(best).zip(labels).filter(|(said, is)| said == is).count())
    }
}

impl Layer {
    /// `x * weight^T + bias`.
    fn forward(&self, weights: &[f32], x: ArrayView2<'_, f32>) -> Result<Array2<f32>> {
        let mut y = Array2::zeros((x.nrows(), self.outputs));
        y += &ArrayView1::from(&weights[self.bias.clone()]);
        general_mat_mul(1.0, &x, &self.weight(weights)?.t(), 1.0, &mut y);
        Ok(y)
    }

    /// The gradients of this layer's tensors, from what came in and the gradient of what went out.
    fn gradient(&self, x: ArrayView2<'_, f32>, dy: &Array2<f32>, gradient: &mut [f32]) -> Result<()> {
        ArrayViewMut1::from(&mut gradient[self.bias.clone()]).assign(&dy.sum_axis(Axis(0)));
        let shape = (self.outputs, self.inputs);
        let mut dw = ArrayViewMut2::from_shape(shape, &mut gradient[self.weight.clone()])?;
        general_mat_mul(1.0, &dy.t(), &x, 0.0, &mut dw);
        Ok(())
    }

    /// The gradient of what went out of the layer before, which was `x` behind its ReLU.
    fn backward(&self, weights: &[f32], dy: &Array2<f32>, x: &Array2<f32>) -> Result<Array2<f32>> {
        let mut dx = dy.dot(&self.weight(weights)?);
        Zip::from(&mut dx).and(x).for_each(|dx, x| {
            if *x == 0.0 {
                *dx = 0.0;
            }
        });
        Ok(dx)
    }

    fn weight<'a>(&self, weights: &'a [f32]) -> Result<ArrayView2<'a, f32>> {
        Ok(ArrayView2::from_shape((self.outputs, self.inputs), &weights[self.weight.clone()])?)
    }
}

fn relu(x: f32) -> f32 {
    x.max(0.0)
}

/// The cross-entropy of the softmax of these scores, which become its gradient; both divided by `batch`.
fn cross_entropy(scores: &mut Array2<f32>, labels: &[u8], batch: usize) -> f64 {
    let mut loss = 0.0;
    for (mut scores, label) in scores.outer_iter_mut().zip(labels) {
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.mapv_inplace(|score| (score - highest).exp());
        let sum = scores.sum();
        let right = &mut scores[usize::from(*label)];
        loss -= f64::from(*right / sum).ln();
        *right -= sum;
        scores /= sum * batch as f32;
    }
    loss / batch as f64
}
