//! Adam (Kingma and Ba, 2015), on a part of the weights.

/// How far a step goes at most, roughly.
const RATE: f64 = 5e-4;
/// How much of the first moment stays.
const BETA1: f32 = 0.9;
/// How much of the second moment stays.
const BETA2: f32 = 0.999;
/// Keeps the division from exploding.
const EPSILON: f32 = 1e-8;

/// One step of the optimiser: what is the same for all weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adam {
    /// The rate, with the correction of the first moment's bias.
    rate: f32,
    /// The correction of the second moment's bias.
    correction: f32,
}

impl Adam {
    /// The optimiser at this step; the first one is 1.
    pub(crate) fn at(step: u64) -> Self {
        let bias = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        Self { rate: (RATE / bias(BETA1)) as f32, correction: (1.0 / bias(BETA2)) as f32 }
    }

    /// Moves these weights and their moments by their gradients.
    pub(crate) fn update(self, weights: &mut [f32], m: &mut [f32], v: &mut [f32], gradients: &[f32]) {
        for (((weight, m), v), gradient) in weights.iter_mut().zip(m).zip(v).zip(gradients) {
            *m += (1.0 - BETA1) * (gradient - *m);
            *v += (1.0 - BETA2) * (gradient * gradient - *v);
            *weight -= self.rate * *m / ((*v * self.correction).sqrt() + EPSILON);
        }
    }
}
