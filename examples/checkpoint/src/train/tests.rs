//! What training promises: that it learns, that all trainers have the same weights, that a saved state goes on as if
//! nothing had been.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use transom::Team;
use transom_tests::process::{self, Me};
use transom_tests::ranks::{Processes, TIMEOUT, builder_of, secret, threads};

use super::adam::Adam;
use super::data::{CLASSES, Digits};
use super::network::Network;
use super::*;

/// Small, and with no number of rows that could be shared out evenly.
const SMALL: Options = Options { seed: 7, width: 37, batch: 31 };
/// Transports by which threads reach each other.
const TRANSPORTS: [&str; 3] = ["local", "shm", "tcp:127.0.0.1:0"];

fn alone(options: Options) -> Training {
    let team = Team::builder().rank(0).size(1).transports("local").secret(secret()).build().unwrap();
    Training::new(&team, options).unwrap()
}

/// Runs `part` at each of the trainers of a team of threads.
fn together<T: Send>(
    transport: &str,
    trainers: u32,
    options: Options,
    part: impl Fn(&mut Training) -> T + Sync,
) -> Vec<T> {
    threads(transport, trainers, |team| {
        let mut training = Training::new(&team, options).unwrap();
        let done = part(&mut training);
        training.close().unwrap();
        done
    })
}

fn learn(training: &mut Training, steps: u64) -> Vec<f64> {
    (0..steps).map(|_| training.step().unwrap().loss).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A saved state: the bytes of each tensor.
type State = HashMap<String, Vec<u8>>;

/// The state that these trainers have saved, each its parts.
fn join(layout: &Layout, saved: Vec<Vec<(Part, Vec<u8>)>>) -> State {
    let mut state: State =
        layout.tensors.iter().map(|tensor| (tensor.name.clone(), vec![0; tensor.size()])).collect();
    let mut missing: usize = layout.tensors.iter().map(Tensor::size).sum();
    for (part, bytes) in saved.into_iter().flatten() {
        let tensor = &layout.tensors[part.tensor];
        let (start, row) = (part.rows.start * tensor.row_size(), tensor.row_size());
        state.get_mut(&tensor.name).unwrap()[start..part.rows.end * row].copy_from_slice(&bytes);
        missing -= bytes.len();
    }
    assert_eq!(missing, 0, "the parts of all trainers are the whole state");
    state
}

fn save(training: &Training) -> Vec<(Part, Vec<u8>)> {
    training.parts().into_iter().map(|part| (part.clone(), training.part(&part).unwrap().to_vec())).collect()
}

fn load(training: &mut Training, step: u64, state: &State) {
    let layout = training.layout().clone();
    let fill = |parts: Vec<(Part, &mut [u8])>| -> Result<()> {
        for (part, bytes) in parts {
            let tensor = &layout.tensors[part.tensor];
            bytes.copy_from_slice(&state[&tensor.name][part.rows.start * tensor.row_size()..][..bytes.len()]);
        }
        Ok(())
    };
    training.load(step, fill).unwrap();
}

/// A hash of the rows that are a trainer's: equal bits, equal digest.
fn digest(training: &Training) -> u64 {
    let mut hash = twox_hash::XxHash3_64::new();
    training
        .parts()
        .iter()
        .for_each(|part| std::hash::Hasher::write(&mut hash, training.part(part).unwrap()));
    std::hash::Hasher::finish(&hash)
}

#[test]
fn the_data_set_is_whole_and_its_parts_share_no_image() {
    let digits = Digits::load().unwrap();
    assert_eq!((digits.train.len(), digits.test.len()), (1541, 256));
    for examples in [&digits.train, &digits.test] {
        assert_eq!(examples.images.nrows(), examples.len());
        assert!(examples.images.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        for digit in 0..CLASSES as u8 {
            // Each is a tenth of them, more or less.
            let count = examples.labels.iter().filter(|label| **label == digit).count();
            assert!((examples.len() / 15..examples.len() / 7).contains(&count), "{digit}: {count}");
        }
    }
    // The fourth and the seventh image of the source are a 3 and a 6: trained with, and tested with.
    assert_eq!((digits.train.labels[3], digits.test.labels[0]), (3, 6));
    assert_eq!(digits.train.images.row(3).iter().sum::<f32>() * 16.0, 267.0);
}

#[test]
fn the_shares_of_all_trainers_are_the_batch_and_another_step_has_another() {
    let digits = Digits::load().unwrap();
    let whole = digits.batch(1, 5, 31, 0, 1);
    assert_eq!(whole.len(), 31);
    for trainers in [2, 3, 40] {
        let shares = (0..trainers).map(|trainer| digits.batch(1, 5, 31, trainer, trainers));
        let labels: Vec<u8> = shares.flat_map(|share| share.labels).collect();
        assert_eq!(labels, whole.labels);
    }
    assert_ne!(digits.batch(1, 6, 31, 0, 1).labels, whole.labels);
    assert_ne!(digits.batch(2, 5, 31, 0, 1).labels, whole.labels);
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    let network = Network::new(9);
    let examples = Digits::load().unwrap().batch(3, 1, 20, 0, 1);
    let mut weights = network.first_weights(3);
    // Biases too, so that nothing is 0 by chance.
    weights.iter_mut().for_each(|weight| *weight += 0.01);
    let mut gradient = vec![f32::NAN; network.len()];
    network.loss(&weights, &examples, 20, &mut gradient).unwrap();
    let mut nothing = gradient.clone();
    let mut at = 0;
    for tensor in network.tensors() {
        let len = tensor.size() / size_of::<f32>();
        let (mut wrong, mut all) = (0.0, 0.0);
        for index in at..at + len {
            let mut loss = |weight| {
                let mut moved = weights.clone();
                moved[index] = weight;
                network.loss(&moved, &examples, 20, &mut nothing).unwrap()
            };
            let step = 2e-3;
            let slope = (loss(weights[index] + step) - loss(weights[index] - step)) / f64::from(2.0 * step);
            wrong += (slope - f64::from(gradient[index])).powi(2);
            all += slope.powi(2);
        }
        assert!(all > 0.0 && (wrong / all).sqrt() < 0.01, "{}: {wrong} of {all}", tensor.name);
        at += len;
    }
    assert_eq!(at, network.len());
}

#[test]
fn a_steady_gradient_moves_a_weight_by_the_rate_from_the_first_step_on() {
    let (mut weights, mut m, mut v) = ([1.0, -1.0, 5.0], [0.0; 3], [0.0; 3]);
    let gradients = [3e-3, -40.0, 0.0];
    let mut moved = Vec::new();
    for step in 1..=20 {
        let before = weights;
        Adam::at(step).update(&mut weights, &mut m, &mut v, &gradients);
        moved.push([0, 1, 2].map(|i| before[i] - weights[i]));
    }
    for [with, against, still] in moved {
        assert!((with - 5e-4).abs() < 5e-6 && (against + 5e-4).abs() < 5e-6, "{with} {against}");
        assert_eq!(still, 0.0);
    }
}

#[test]
fn it_learns_the_digits() {
    let mut training = alone(Options { seed: 1, width: 128, batch: 64 });
    let before = training.accuracy().unwrap();
    let losses = learn(&mut training, 500);
    let after = training.accuracy().unwrap();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!((losses[0] - 10.0_f64.ln()).abs() < 1.0, "nothing is known at first: {}", losses[0]);
    assert!(mean(&losses[480..]) < 0.1 * mean(&losses[..20]), "{losses:?}");
    assert!(before < 0.4 && after > 0.95, "{before} {after}");
}

#[test]
fn every_trainer_has_the_same_bits_on_every_transport_and_nearly_those_of_one_alone() {
    // Some own no row of a tensor, some have no example of a batch.
    for options in [SMALL, Options { seed: 2, width: 2, batch: 2 }] {
        let mut one = alone(options);
        let losses_alone = learn(&mut one, 12);
        for trainers in [2, 3] {
            let mut first = None;
            for transport in TRANSPORTS {
                let all = together(transport, trainers, options, |training| {
                    let losses = learn(training, 12);
                    (bits(&training.weights), losses, digest(training))
                });
                let (weights, losses, digest) = first.get_or_insert_with(|| all[0].clone());
                for (rank, one) in all.iter().enumerate() {
                    assert!(one.0 == *weights && one.1 == *losses, "{rank} of {trainers} over {transport}");
                }
                assert_eq!(all[0].2, *digest);
                assert_ne!(all[0].2, all[1].2, "each has its own rows");
            }
            let (weights, losses, _) = first.unwrap();
            for (mine, of_one) in losses.iter().zip(&losses_alone) {
                assert!((mine - of_one).abs() < 1e-4, "{losses:?} {losses_alone:?}");
            }
            for (mine, of_one) in weights.iter().map(|bits| f32::from_bits(*bits)).zip(&one.weights) {
                assert!((mine - of_one).abs() < 2e-3, "{mine} {of_one}");
            }
        }
    }
}

#[test]
fn a_loaded_state_goes_on_as_if_nothing_had_been() {
    for trainers in [1, 2, 3] {
        let straight = together("shm", trainers, SMALL, |training| {
            learn(training, 10);
            let saved = save(training);
            let losses = learn(training, 10);
            (saved, losses, save(training), training.layout().clone())
        });
        let layout = straight[0].3.clone();
        let state = join(&layout, straight.iter().map(|one| one.0.clone()).collect());
        let end = join(&layout, straight.iter().map(|one| one.2.clone()).collect());
        let again = together("shm", trainers, SMALL, |training| {
            // A state of its own to be overwritten.
            learn(training, 3);
            load(training, 10, &state);
            assert_eq!(training.steps(), 10);
            (learn(training, 10), save(training))
        });
        assert_eq!(again[0].0, straight[0].1);
        assert!(join(&layout, again.into_iter().map(|one| one.1).collect()) == end, "{trainers} trainers");
    }
}

#[test]
fn another_number_of_trainers_loads_the_same_bits() {
    for (saving, loading) in [(2, 3), (3, 2), (1, 3), (3, 1)] {
        let saved = together("shm", saving, SMALL, |training| {
            learn(training, 5);
            save(training)
        });
        let layout = alone(SMALL).layout().clone();
        let state = join(&layout, saved);
        let loaded = together("tcp:127.0.0.1:0", loading, SMALL, |training| {
            load(training, 5, &state);
            let weights = training.weights.as_bytes().to_vec();
            let whole: Vec<u8> =
                training.network.tensors().iter().flat_map(|tensor| state[&tensor.name].clone()).collect();
            assert!(weights == whole, "every trainer has all weights");
            let saved = save(training);
            learn(training, 2);
            saved
        });
        assert!(join(&layout, loaded) == state, "{saving} saved, {loading} loaded");
    }
}

#[test]
fn a_load_overtakes_nobody_who_still_reads_the_weights_of_the_step_before() {
    let wide = Options { width: 300, ..SMALL };
    let state = join(alone(wide).layout(), vec![save(&alone(wide))]);
    let all = together("shm", 3, wide, |training| {
        let step_again = |_| {
            load(training, 0, &state);
            learn(training, 1);
            bits(&training.weights)
        };
        let mut steps: Vec<_> = (0..40).map(step_again).collect();
        steps.dedup();
        steps
    });
    assert!(all.iter().all(|steps| steps.len() == 1 && *steps == all[0]));
}

#[test]
fn the_layout_names_weights_and_moments_and_rows_of_others_are_refused() {
    let names: Vec<_> = alone(SMALL).layout().tensors.iter().map(|tensor| tensor.name.clone()).collect();
    assert_eq!((names.len(), &names[..2]), (18, &["layer1.weight".to_owned(), "layer1.bias".to_owned()][..]));
    assert_eq!((&names[6][..], &names[17][..]), ("adam.m.layer1.weight", "adam.v.layer3.bias"));
    together("local", 2, SMALL, |training| {
        learn(training, 2);
        for part in training.parts() {
            let bytes = training.part(&part).unwrap();
            assert_eq!(bytes.len(), training.layout().size(&part));
            let last = Part { rows: part.rows.end - 1..part.rows.end, ..part.clone() };
            let row = training.layout().size(&last);
            assert!(training.part(&last).unwrap() == &bytes[bytes.len() - row..]);
            let wider = Part { rows: part.rows.start..part.rows.end + 1, ..part.clone() };
            let other = Part { rows: wider.rows.end..wider.rows.end + 1, ..part };
            for refused in [wider, other, Part { tensor: 18, rows: 0..1 }] {
                let error = training.part(&refused).unwrap_err();
                assert!(matches!(error, Error::NotOwned { .. }), "{error}");
            }
        }
    });
}

#[test]
fn options_that_make_no_sense_are_told() {
    let team = Team::builder().rank(0).size(1).transports("local").secret(secret()).build().unwrap();
    for options in [Options { width: 0, ..SMALL }, Options { batch: 0, ..SMALL }] {
        assert!(matches!(Training::new(&team, options).unwrap_err(), Error::Zero { .. }));
    }
}

mod shm {
    #[test]
    fn a_trainer_that_dies_or_stops_is_named_by_the_others() {
        super::a_trainer_that_dies_or_stops_is_named_by_the_others("shm", "shm");
    }
}

mod tcp {
    #[test]
    fn a_trainer_that_dies_or_stops_is_named_by_the_others() {
        super::a_trainer_that_dies_or_stops_is_named_by_the_others("tcp", "tcp:127.0.0.1:0");
    }
}

/// A trainer that trains until that fails.
fn trains(me: &mut Me) {
    let team = builder_of(me).build().unwrap();
    let mut training = Training::new(&team, SMALL).unwrap();
    learn(&mut training, 3);
    me.say("trains");
    let error = loop {
        let since = Instant::now();
        if let Err(error) = training.step() {
            assert!(since.elapsed() < TIMEOUT / 2, "{error}");
            break error;
        }
    };
    me.say(&error.to_string());
    // The others are to see the victim's end, not this one's.
    let _ = me.hear();
}

fn a_trainer_that_dies_or_stops_is_named_by_the_others(name: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        return trains(&mut me);
    }
    let test = format!("train::tests::{name}::a_trainer_that_dies_or_stops_is_named_by_the_others");
    // That one has stopped is seen after 2.5 s: once is enough.
    for (victim, kill) in [(0, true), (1, true), (2, true), (1, false)] {
        let mut job = Processes::start(&test, transport, 3);
        assert_eq!(job.ranks.hear(), ["trains"; 3]);
        if kill {
            job.ranks[victim].kill();
        } else {
            job.ranks[victim].stop();
        }
        for survivor in (0..3).filter(|rank| *rank != victim) {
            let said = job.ranks[survivor].hear_within(Duration::from_secs(15));
            assert!(said.contains(&format!("rank {victim}")), "{survivor} of {victim}: {said}");
        }
    }
}
