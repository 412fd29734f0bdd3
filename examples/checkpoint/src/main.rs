//! The program `checkpoint`.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "what saves and loads the state follows")]
mod train;

use std::error::Error;

use train::{Options, Training};
use transom::Team;

/// Steps of a run.
const STEPS: u64 = 150;

#[expect(clippy::print_stdout, reason = "a program prints")]
fn main() -> Result<(), Box<dyn Error>> {
    let team = Team::from_env()?;
    let mut training = Training::new(&team, Options::default())?;
    while training.steps() < STEPS {
        let done = training.step()?;
        if team.rank() == 0 && done.step % 10 == 0 {
            println!("step {}: loss {:.4}, {:?} + {:?}", done.step, done.loss, done.compute, done.exchange);
        }
    }
    if team.rank() == 0 {
        println!("accuracy {:.2} %", 100.0 * training.accuracy()?);
    }
    training.close()?;
    Ok(())
}
