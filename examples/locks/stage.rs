//! Both ends of the processes. They get their cues on standard input and answer on standard output,
//! line by line.

use std::{env, fmt::Display, io, process, process::Stdio, thread, time::Duration};

use bellwether::{BoxError, Locks, RedisBackend};
use redis::{AsyncConnectionConfig, Client, FromRedisValue, aio::MultiplexedConnection};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::sleep,
};

use crate::server::Server;

/// The number of processes with the same part, and of the tasks of each.
pub(crate) const PROCESSES: usize = 3;
pub(crate) const TASKS: usize = 4;

/// The time limit of an answer, which a busy machine does not reach.
const PATIENCE: Duration = Duration::from_secs(5);

/// The key of the journal. The server decides the order of events, not a clock.
const JOURNAL: &str = "journal";

pub(crate) struct Stage {
    server: Server,
    redis: MultiplexedConnection,
    pub(crate) locks: Locks,
}

impl Stage {
    pub(crate) async fn set() -> Result<Self, BoxError> {
        let server = Server::start().await?;
        let (redis, locks) = connect(&server.url()).await?;
        Ok(Self { server, redis, locks })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    /// Starts a process for a part, and waits until it is connected.
    pub(crate) async fn actor(&self, scene: &str, part: &str) -> Result<Actor, BoxError> {
        let mut child = Command::new(env::current_exe()?)
            .args([scene, part, &self.server.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process has no standard input and output".into());
        };
        let mut actor = Actor { child, input, output: BufReader::new(output).lines() };
        actor.hears("ready").await?;
        Ok(actor)
    }

    /// Starts [`PROCESSES`] processes with the same part.
    pub(crate) async fn actors(&self, scene: &str, part: &str) -> Result<Vec<Actor>, BoxError> {
        let mut actors = Vec::new();
        for _ in 0..PROCESSES {
            actors.push(self.actor(scene, part).await?);
        }
        Ok(actors)
    }

    /// Lets all processes begin together, and waits until each is done.
    pub(crate) async fn together(&self, scene: &str, part: &str) -> Result<(), BoxError> {
        let mut actors = self.actors(scene, part).await?;
        for actor in &mut actors {
            actor.cue("go").await?;
        }
        for actor in &mut actors {
            actor.hears("done").await?;
        }
        Ok(())
    }

    /// Returns the new lines of the journal since the last call.
    pub(crate) async fn journal(&self) -> Result<Vec<String>, BoxError> {
        let lines = self.run("LRANGE", &[JOURNAL, "0", "-1"]).await?;
        self.run::<()>("DEL", &[JOURNAL]).await?;
        Ok(lines)
    }

    /// Waits until this many tasks are in the queue of a lock.
    pub(crate) async fn queued(&self, queue: &str, tasks: usize) -> Result<(), BoxError> {
        while self.run::<usize>("ZCARD", &[queue]).await? < tasks {
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        command: &str,
        arguments: &[&str],
    ) -> Result<T, BoxError> {
        Ok(redis::cmd(command).arg(arguments).query_async(&mut self.redis.clone()).await?)
    }
}

/// Connects to the server twice: for plain commands, and for the locks.
async fn connect(url: &str) -> Result<(MultiplexedConnection, Locks), BoxError> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let redis = Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let backend = RedisBackend::builder().server(url).command_timeout(PATIENCE).build()?;
    backend.ping().await?;
    Ok((redis, Locks::new(backend, "shop")))
}

/// A process, from the side of the stage. It is killed on drop.
pub(crate) struct Actor {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    pub(crate) async fn cue(&mut self, text: impl Display) -> Result<(), BoxError> {
        self.input.write_all(format!("{text}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    pub(crate) async fn says(&mut self) -> Result<String, BoxError> {
        let line = self.output.next_line().await?;
        line.ok_or_else(|| "a process has ended before its time".into())
    }

    /// Waits for this answer. Any other answer is an error.
    pub(crate) async fn hears(&mut self, expected: &str) -> Result<(), BoxError> {
        let said = self.says().await?;
        expect(said == expected, || format!("a process says {said:?} and not {expected:?}"))
    }

    /// Kills the process, as a power failure would.
    pub(crate) async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), BoxError> {
        let id = self.child.id().ok_or("a process has ended")?;
        let id = Pid::from_raw(i32::try_from(id)?).ok_or("no such process")?;
        Ok(kill_process(id, signal)?)
    }
}

/// A process, from the inside.
pub(crate) struct Player {
    pub(crate) locks: Locks,
    pub(crate) redis: MultiplexedConnection,
    cues: UnboundedReceiver<String>,
}

impl Player {
    pub(crate) async fn enter(url: &str) -> Result<Self, BoxError> {
        let (cue, cues) = unbounded_channel();
        thread::spawn(move || {
            for line in io::stdin().lines().map_while(Result::ok) {
                // This fails only if no task waits for a cue.
                let _ = cue.send(line);
            }
            // The stage has ended, and the process ends with it.
            process::exit(1);
        });
        let (redis, locks) = connect(url).await?;
        let me = Self { locks, redis, cues };
        me.tell("ready");
        Ok(me)
    }

    /// Waits for the next cue of the stage.
    pub(crate) async fn cue(&mut self) -> Result<String, BoxError> {
        self.cues.recv().await.ok_or_else(|| "the stage is gone".into())
    }

    pub(crate) fn tell(&self, text: impl Display) {
        println!("{text}");
    }

    pub(crate) fn pen(&self) -> Pen {
        Pen(self.redis.clone())
    }
}

/// Writes the journal, and reads and writes numbers, by plain commands.
#[derive(Clone)]
pub(crate) struct Pen(MultiplexedConnection);

impl Pen {
    pub(crate) async fn note(&self, text: impl Display) -> Result<(), BoxError> {
        let mut note = redis::cmd("RPUSH");
        Ok(note.arg(JOURNAL).arg(text.to_string()).exec_async(&mut self.0.clone()).await?)
    }

    /// Adds to a number by a read and a write. Another process may write in between.
    pub(crate) async fn add(&self, number: &str, more: i64) -> Result<(), BoxError> {
        let redis = &mut self.0.clone();
        let read: Option<i64> = redis::cmd("GET").arg(number).query_async(redis).await?;
        let sum = read.unwrap_or_default() + more;
        Ok(redis::cmd("SET").arg(number).arg(sum).exec_async(redis).await?)
    }
}

/// Returns an error if a guarantee of a lock does not hold.
pub(crate) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), BoxError> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
