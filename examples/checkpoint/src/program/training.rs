//! `checkpoint` without a command: a job that trains and saves.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use transom_checkpoint::disk::RealDisk;
use transom_checkpoint::{BLOCK, Checkpoints, Layout, Model, Role, Saver};

use super::crash::Crash;
use super::job::{self, Place};
use super::options::{Keeping, Train};
use super::report::{self, Wrote};
use super::state::{Fixed, State};
use super::trainer::{self, Course, Seen};
use super::{print, say, writer};
use crate::Failed;
use crate::train::{self, Training};

/// Runs the job, or one rank of it.
pub(crate) fn run(options: &Train) -> Result<ExitCode, Failed> {
    if job::is_rank()? { rank(options).map(|()| ExitCode::SUCCESS) } else { start(options) }
}

/// Looks whether everything is there, then starts the ranks.
fn start(options: &Train) -> Result<ExitCode, Failed> {
    layout(options)?;
    let directory = Directory::make(&options.keeping)?;
    let newest = Checkpoints::create(directory.path(), options.keeping.options())?.latest()?;
    match (&newest, options.resume) {
        (Some(newest), false) => {
            return Err(Failed(format!(
                "{} holds checkpoints up to step {} (--resume goes on from there; name another directory to begin anew)",
                directory.path().display(),
                newest.step()
            )));
        }
        (None, true) => {
            return Err(Failed(format!(
                "{} holds no complete checkpoint to go on from (checkpoint ls shows what it holds)",
                directory.path().display()
            )));
        }
        _ => {}
    }
    job::start(&options.job, directory.made())
}

fn layout(options: &Train) -> Result<Layout, Failed> {
    match &options.model {
        Some(file) => Ok(model(file)?.layout().clone()),
        None => Ok(train::layout(options.width as usize)),
    }
}

fn model(file: &Path) -> Result<Model, Failed> {
    Ok(Model::open(file, Arc::new(RealDisk::default()))?)
}

fn rank(options: &Train) -> Result<(), Failed> {
    let directory =
        options.keeping.dir.as_deref().ok_or_else(|| Failed("no directory was named: --dir".into()))?;
    let layout = layout(options)?;
    let place = Place::find(&options.job)?;
    let staging = place.stage(&options.job, &layout, BLOCK)?;
    let crash = Crash::from_options(options);
    let store = place.team.store();
    let mine = report::key(place.team.rank());
    match (place.roles.role(place.team.rank()), &place.trainers) {
        (Role::Trainer(number), Some(trainers)) => {
            let mut state = state(options, &layout, number, trainers)?;
            let mut course = Course { from: 0, steps: options.steps, every: options.every };
            if options.resume {
                course.from = resume(&mut *state, directory, options, &place)?;
            }
            let mut saver = Saver::new(&staging, &layout)?;
            let mut seen = trainer::train(&mut *state, &mut saver, &staging, course, &crash)?;
            trainer::compare(&mut seen, &*state, &layout, trainers, directory)?;
            saver.end()?;
            state.close()?;
            store.set(&mine, &serde_json::to_vec(&seen)?)?;
            if number == 0 {
                let transports = options.job.transport.as_deref().unwrap_or("shm, tcp");
                print(&gather(&place, transports, course)?);
            }
        }
        _ => {
            let checkpoints = Checkpoints::create(directory, options.keeping.options())?;
            let mut wrote = writer::write(&staging, &layout, &checkpoints, &crash, &|_| {})?;
            if !wrote.checkpoints.is_empty() {
                let size = layout.tensors.iter().map(|tensor| tensor.size()).sum();
                match super::bench::limit(directory, size, 3) {
                    Ok(limit) => wrote.raw = limit,
                    Err(error) => say(&format!("the limit of the disk is not known: {error}")),
                }
            }
            store.set(&mine, &serde_json::to_vec(&wrote)?)?;
        }
    }
    Ok(())
}

fn state(
    options: &Train,
    layout: &Layout,
    number: u32,
    trainers: &transom::Team,
) -> Result<Box<dyn State>, Failed> {
    match &options.model {
        Some(file) => {
            let mut fixed = Fixed::zeroed(layout.clone(), number as usize, trainers.size() as usize);
            model(file)?.load(fixed.targets())?;
            Ok(Box::new(fixed))
        }
        None => {
            let chosen =
                train::Options { seed: options.seed, width: options.width as usize, ..Default::default() };
            Ok(Box::new(Training::new(trainers, chosen)?))
        }
    }
}

/// Takes the state of the newest checkpoint, and returns its step: the same one at every trainer.
fn resume(state: &mut dyn State, directory: &Path, options: &Train, place: &Place) -> Result<u64, Failed> {
    const STEP: &str = "checkpoint/resume";
    let checkpoints = Checkpoints::open(directory, options.keeping.options())?;
    if place.team.rank() == 0 {
        let newest = checkpoints.latest()?.ok_or_else(|| Failed("no complete checkpoint is left".into()))?;
        place.team.store().set(STEP, newest.step().to_string().as_bytes())?;
    }
    let step = place.team.store().get(STEP, place.team.timeout())?;
    let step =
        String::from_utf8_lossy(&step).parse().map_err(|e| Failed(format!("the step to go on from: {e}")))?;
    state.load(step, &mut |targets| Ok(checkpoints.checkpoint(step)?.load(targets)?))?;
    Ok(step)
}

/// Puts together what all ranks saw.
fn gather(place: &Place, transports: &str, course: Course) -> Result<String, Failed> {
    let mut seen = Vec::new();
    let mut wrote = Vec::new();
    for (role, told) in report::collect(place)? {
        match role {
            Role::Trainer(_) => seen.push(serde_json::from_slice::<Seen>(&told)?),
            Role::Writer(_) => wrote.push(serde_json::from_slice::<Wrote>(&told)?),
        }
    }
    Ok(report::table(place.roles, transports, course, &seen, &wrote))
}

/// The directory of a run: named by the user, or made for the run and removed with it.
pub(crate) struct Directory {
    path: PathBuf,
    made: bool,
}

impl Directory {
    pub(crate) fn make(keeping: &Keeping) -> Result<Self, Failed> {
        let (path, made) = match &keeping.dir {
            Some(dir) => (dir.clone(), false),
            None => (std::env::temp_dir().join(format!("transom-checkpoint-{}", std::process::id())), true),
        };
        // One that is made for the run was not there before: what is in it is ours to remove.
        let done = if made { std::fs::create_dir(&path) } else { std::fs::create_dir_all(&path) };
        done.map_err(|e| {
            Failed(format!("make the directory {}: {e} (name another one: --dir)", path.display()))
        })?;
        Ok(Self { path, made })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is, if it was made for the run.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.made.then_some(&self.path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            // What cannot be removed stays, in the directory for such things.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
