//! A writer: drains what trainers stage to checkpoints on disk.
//!
//! One thread for each trainer takes blocks out of its ring and hands them to the disk; a block is freed when it was
//! written. The one that serves trainer 0 *leads*: once every trainer's shard of a step is on disk, it commits the
//! checkpoint. Where other writers have some of the shards, they leave word of them in the team's store.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::staging::{Event, Inbox, Note, Staging, Told};
use crate::{Checkpoints, Committed, Error, Layout, Result, Save, Written};

/// How often a wait looks whether it is still worth waiting for.
const GLANCE: Duration = Duration::from_millis(100);

/// How many steps word of a shard is kept.
const KEPT: usize = 16;

/// What happens to saves, as a writer sees it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Report {
    /// A trainer's save of this step begins.
    Begun {
        /// The trainer.
        trainer: u32,
        /// The step.
        step: u64,
    },
    /// A trainer's shard of this step is on disk.
    Written {
        /// The trainer.
        trainer: u32,
        /// The step.
        step: u64,
    },
    /// The checkpoint of this step is durable.
    Committed {
        /// The step.
        step: u64,
        /// What it is made of.
        committed: Committed,
        /// From the moment when its first byte was there.
        took: Duration,
    },
    /// There will be no checkpoint of this step.
    Abandoned {
        /// The step.
        step: u64,
        /// Why.
        error: Error,
    },
    /// A trainer failed.
    TrainerLost {
        /// The trainer.
        trainer: u32,
        /// How.
        error: Error,
    },
}

/// Drains the staging window of one rank, a writer or a standby.
#[derive(Debug)]
pub struct Writer<'a> {
    staging: &'a Staging,
    layout: &'a Layout,
    checkpoints: &'a Checkpoints,
    /// Tells the saves of this job, and of this writer where it is the only one, from all others.
    id: String,
    deposits: Deposits,
    /// The last step that this writer has told to be abandoned.
    abandoned: Mutex<Option<u64>>,
}

impl<'a> Writer<'a> {
    /// Makes the writer of this rank.
    ///
    /// # Errors
    /// Those of the team's store.
    pub fn new(staging: &'a Staging, layout: &'a Layout, checkpoints: &'a Checkpoints) -> Result<Self> {
        let team = staging.team();
        let mine = team.context().incarnation().to_string();
        let job = team.store().compare_set("checkpoint/job", None, mine.as_bytes())?;
        let job = String::from_utf8_lossy(&job);
        // Several writers fill one step together. Alone, a standby does not go on with what the writer before it has left.
        let id =
            if staging.roles().writers > 1 { job.into_owned() } else { format!("{job}-{}", team.rank()) };
        let (deposits, abandoned) = Default::default();
        Ok(Self { staging, layout, checkpoints, id, deposits, abandoned })
    }

    /// Drains until every trainer has ended or failed. What happens is told to `report`, from several threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] on a rank that is no writer; whatever breaks the protocol of the window. Errors of the disk end a
    /// save, not this: they are told in [`Report::Abandoned`].
    pub fn run(&self, report: impl Fn(Report) + Sync) -> Result<()> {
        let report: &(dyn Fn(Report) + Sync) = &report;
        let inboxes = self
            .staging
            .trainers()
            .into_iter()
            .map(|trainer| Inbox::new(self.staging, self.layout, trainer))
            .collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let drains: Vec<_> = inboxes
                .into_iter()
                .map(|inbox| scope.spawn(move || Drain::new(self, inbox, report).run()))
                .collect();
            drains
                .into_iter()
                .try_for_each(|drain| drain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// A thread that drains one trainer's ring.
struct Drain<'a> {
    writer: &'a Writer<'a>,
    inbox: Inbox,
    report: &'a (dyn Fn(Report) + Sync),
    /// The save that has begun, until it is whole or has failed.
    save: Option<Open>,
    /// Blocks that the disk has, in the order of the stream: where each ends, and whether it was written.
    at_disk: VecDeque<(u64, bool)>,
    /// The place in the stream of the first of them.
    first: u64,
    done: (Sender<Done>, Receiver<Done>),
}

struct Open {
    step: u64,
    note: Note,
    since: Instant,
    save: Save,
}

/// The disk has done with a block of a step.
struct Done {
    number: u64,
    step: u64,
    written: Result<()>,
}

impl<'a> Drain<'a> {
    fn new(writer: &'a Writer<'a>, inbox: Inbox, report: &'a (dyn Fn(Report) + Sync)) -> Self {
        Self { writer, inbox, report, save: None, at_disk: VecDeque::new(), first: 0, done: channel() }
    }

    fn run(mut self) -> Result<()> {
        let ended = self.drain();
        // Nothing may write from staging memory once this is over.
        while self.is_writing() {
            self.settle(true);
        }
        self.writer.deposits.end(self.inbox.trainer());
        match ended {
            Err(error) if error.is_failure() => {
                let trainer = self.inbox.trainer();
                if let Some(Open { step, save, .. }) = self.save.take() {
                    drop(save);
                    self.abandon(step, Error::TrainerLost { trainer, step });
                }
                (self.report)(Report::TrainerLost { trainer, error });
                Ok(())
            }
            other => other,
        }
    }

    fn drain(&mut self) -> Result<()> {
        loop {
            // What was announced goes to the disk at once; only then is the disk waited for.
            while !self.inbox.is_ready() && !self.at_disk.is_empty() {
                self.settle(true);
                self.free()?;
            }
            let (event, end) = match self.inbox.next(Duration::from_secs(3600)) {
                Ok(next) => next,
                Err(error) if error.is_expired() => continue,
                Err(error) => return Err(error),
            };
            match event {
                Event::Begin { step, note } => {
                    self.at_disk.push_back((end, true));
                    self.begin(step, note);
                }
                Event::Block { file, index, bytes, last } => {
                    self.at_disk.push_back((end, self.save.is_none()));
                    let number = self.first + self.at_disk.len() as u64 - 1;
                    if let Some(open) = &self.save {
                        let (step, done) = (open.step, self.done.0.clone());
                        open.save.write(file, index, bytes, move |written| {
                            // Nobody listens any more: then nobody waits for it either.
                            let _ = done.send(Done { number, step, written });
                        });
                    }
                    if last {
                        while self.is_writing() {
                            self.settle(true);
                            self.free()?;
                        }
                        self.finish();
                    }
                }
                Event::End => return Ok(()),
            }
            self.settle(false);
            self.free()?;
        }
    }

    /// Whether the disk has blocks that it has not done with.
    fn is_writing(&self) -> bool {
        self.at_disk.iter().any(|(_, written)| !written)
    }

    fn begin(&mut self, step: u64, note: Note) {
        let trainer = self.inbox.trainer();
        if let Some(open) = self.save.take() {
            self.abandon(open.step, Error::Superseded { step: open.step, by: step });
        }
        self.writer.deposits.begin(trainer, step);
        (self.report)(Report::Begun { trainer, step });
        match self.writer.checkpoints.begin(step, &self.writer.id, self.inbox.plan().clone()) {
            Ok(save) => self.save = Some(Open { step, note, since: Instant::now(), save }),
            // The writer before this one had come so far, and not to telling everybody.
            Err(Error::Exists { .. }) => drop(self.writer.staging.tell(trainer, Told::Durable, step)),
            Err(error) => self.abandon(step, error),
        }
    }

    /// There will be no checkpoint of a step: reported once, with the first reason. Trainers are told, and who leads.
    fn abandon(&self, step: u64, error: Error) {
        let first = self.writer.abandoned.lock().replace(step) != Some(step);
        if first {
            (self.report)(Report::Abandoned { step, error });
            // What cannot be removed now, the next save removes.
            let _ = self.writer.checkpoints.abandon(step);
        }
        // A store that cannot be reached, or a trainer: then it is waited for in vain, and not longer than that.
        let _ = self.writer.deposit(self.inbox.trainer(), step, None);
        for trainer in 0..self.writer.staging.roles().trainers {
            let _ = self.writer.staging.tell(trainer, Told::Abandoned, step);
        }
    }

    /// Takes in what the disk has done; waits for at least one block, if it is told to.
    fn settle(&mut self, wait: bool) {
        let mut next = if wait { self.done.1.recv().ok() } else { self.done.1.try_recv().ok() };
        while let Some(done) = next {
            self.at_disk[(done.number - self.first) as usize].1 = true;
            if let Err(error) = done.written
                && let Some(Open { step, save, .. }) = self.save.take_if(|open| open.step == done.step)
            {
                drop(save);
                self.abandon(step, error);
            }
            next = self.done.1.try_recv().ok();
        }
    }

    /// Frees what was written, from the front.
    fn free(&mut self) -> Result<()> {
        let mut freed = None;
        while let Some((end, true)) = self.at_disk.front() {
            freed = Some(*end);
            self.at_disk.pop_front();
            self.first += 1;
        }
        freed.map_or(Ok(()), |end| self.inbox.free(end))
    }

    /// The last block of a save is on disk.
    fn finish(&mut self) {
        let Some(Open { step, note, since, save }) = self.save.take() else { return };
        let trainer = self.inbox.trainer();
        let finished = save.finish().and_then(|written| {
            (self.report)(Report::Written { trainer, step });
            self.writer.deposit(trainer, step, Some(written))?;
            if trainer != 0 {
                return Ok(());
            }
            let written = self.writer.collect(step)?;
            let committed = self.writer.checkpoints.commit(self.writer.layout, &note, written)?;
            for trainer in 0..self.writer.staging.roles().trainers {
                // Who has failed meanwhile need not know.
                let _ = self.writer.staging.tell(trainer, Told::Durable, step);
            }
            (self.report)(Report::Committed { step, committed, took: since.elapsed() });
            Ok(())
        });
        if let Err(error) = finished {
            self.abandon(step, error);
        }
    }
}

/// The shards of this process that are on disk and wait to be committed.
#[derive(Debug, Default)]
struct Deposits {
    of: Mutex<HashMap<u32, Deposit>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Deposit {
    /// The step whose save began last.
    begun: u64,
    ended: bool,
    /// By step; `None` where the shard has failed. Trainers may be some steps apart.
    written: BTreeMap<u64, Option<Written>>,
}

impl Deposits {
    fn change(&self, trainer: u32, change: impl FnOnce(&mut Deposit)) {
        change(self.of.lock().entry(trainer).or_default());
        self.changed.notify_all();
    }

    fn begin(&self, trainer: u32, step: u64) {
        self.change(trainer, |deposit| deposit.begun = step);
    }

    fn end(&self, trainer: u32) {
        self.change(trainer, |deposit| deposit.ended = true);
    }
}

impl Writer<'_> {
    /// Keeps word of a shard of a step, that it is on disk or has failed, and leaves it in the store where another writer may
    /// lead.
    fn deposit(&self, trainer: u32, step: u64, written: Option<Written>) -> Result<()> {
        let shared = self.staging.roles().writers > 1 && trainer != 0;
        if shared {
            let word = serde_json::to_vec(&written).map_err(|e| Error::Protocol(e.to_string()))?;
            self.staging.team().store().set(&key(trainer, step), &word)?;
        }
        let mut old = None;
        self.deposits.change(trainer, |deposit| {
            deposit.written.insert(step, written);
            if deposit.written.len() > KEPT {
                old = deposit.written.pop_first();
            }
        });
        match old {
            Some((old, _)) if shared => {
                self.staging.team().store().delete(&key(trainer, old))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits for the shards of all trainers of a step.
    fn collect(&self, step: u64) -> Result<Vec<Written>> {
        let until = Instant::now() + self.staging.team().timeout();
        (0..self.staging.roles().trainers).map(|trainer| self.wait_for(trainer, step, until)).collect()
    }

    fn wait_for(&self, trainer: u32, step: u64, until: Instant) -> Result<Written> {
        let team = self.staging.team();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let lost = {
                let mut of = self.deposits.of.lock();
                let deposit = of.entry(trainer).or_default();
                if let Some(written) = deposit.written.get(&step) {
                    return written.clone().ok_or(Error::TrainerLost { trainer, step });
                }
                let lost = deposit.begun > step || deposit.ended || team.failure(trainer).is_some();
                if !lost && self.staging.roles().writers == 1 && !left.is_zero() {
                    self.deposits.changed.wait_for(&mut of, GLANCE.min(left));
                    continue;
                }
                lost
            };
            if self.staging.roles().writers > 1 {
                match team.store().get(&key(trainer, step), GLANCE.min(left)) {
                    Ok(word) => {
                        let written: Option<Written> =
                            serde_json::from_slice(&word).map_err(|e| Error::Protocol(e.to_string()))?;
                        return written.ok_or(Error::TrainerLost { trainer, step });
                    }
                    Err(transom::Error::Expired { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if lost {
                return Err(Error::TrainerLost { trainer, step });
            }
            if left.is_zero() {
                return Err(Error::ShardMissing { trainer, step });
            }
        }
    }
}

/// Where word of a trainer's shard of a step is left.
fn key(trainer: u32, step: u64) -> String {
    format!("checkpoint/written/{trainer}/{step}")
}
