//! The replicas of one way: started together, found by clients, killed one by one.

use std::{
    env,
    net::{SocketAddr, TcpListener},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    runtime::{Builder, Runtime},
};

use crate::{
    Failure,
    replica::{self, Settings},
    store::Shared,
};

/// The replicas; they end when this is dropped.
pub(crate) struct Fleet {
    members: Mutex<Vec<Member>>,
    doors: Arc<Doors>,
}

/// The addresses of the replicas, as a load balancer knows them.
pub(crate) struct Doors(Vec<Door>);

struct Door {
    address: SocketAddr,
    open: AtomicBool,
}

impl Doors {
    /// Returns the addresses of all replicas.
    pub(crate) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(|door| door.address)
    }

    /// Returns the address of any replica that is not known to be dead.
    pub(crate) fn any(&self) -> Option<SocketAddr> {
        let open: Vec<&Door> =
            self.0.iter().filter(|door| door.open.load(Ordering::Relaxed)).collect();
        fastrand::choice(open).map(|door| door.address)
    }
}

enum Member {
    Embedded(Embedded),
    /// The process ends when its standard input is closed.
    Process(Child, #[expect(dead_code, reason = "held open")] ChildStdin),
}

impl Fleet {
    /// Starts replicas within this process, or as processes of their own.
    pub(crate) async fn start(
        replicas: Vec<Settings>,
        as_processes: bool,
        shared: &Shared,
    ) -> Result<Self, Failure> {
        let mut members = Vec::new();
        let mut doors = Vec::new();
        for settings in replicas {
            let (member, address) = if as_processes {
                start_process(&settings).await?
            } else {
                start_embedded(settings, shared.clone())?
            };
            members.push(member);
            doors.push(Door { address, open: AtomicBool::new(true) });
        }
        Ok(Self { members: Mutex::new(members), doors: Arc::new(Doors(doors)) })
    }

    /// Returns the addresses of the replicas.
    pub(crate) fn doors(&self) -> Arc<Doors> {
        self.doors.clone()
    }

    /// Kills a replica without a warning. Its work stops, and nothing is cleaned up.
    pub(crate) fn kill(&self, number: u16) -> Result<(), Failure> {
        let index = usize::from(number);
        let door = self.doors.0.get(index).ok_or("no such replica")?;
        door.open.store(false, Ordering::Relaxed);
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        match members.get_mut(index).ok_or("no such replica")? {
            Member::Embedded(embedded) => embedded.kill(),
            Member::Process(child, _) => child.start_kill()?,
        }
        Ok(())
    }
}

/// A replica with a runtime of its own, which stands for a process.
struct Embedded(Option<Runtime>);

impl Embedded {
    /// Drops the tasks of the replica without waiting for them.
    fn kill(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start_embedded(settings: Settings, shared: Shared) -> Result<(Member, SocketAddr), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let name = format!("replica-{}", settings.number);
    let runtime =
        Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
    runtime.spawn(async move {
        if let Err(error) = replica::serve(settings, listener, shared).await {
            eprintln!("hotspot: a replica ended: {error:#}");
        }
    });
    Ok((Member::Embedded(Embedded(Some(runtime))), address))
}

async fn start_process(settings: &Settings) -> Result<(Member, SocketAddr), Failure> {
    let mut child = Command::new(env::current_exe()?)
        .arg("replica")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("a replica has no standard input and output".into());
    };
    let mut line = serde_json::to_vec(settings)?;
    line.push(b'\n');
    input.write_all(&line).await?;
    input.flush().await?;
    let mut address = String::new();
    BufReader::new(output).read_line(&mut address).await?;
    let address = address.trim().parse().map_err(|_| "a replica did not start")?;
    Ok((Member::Process(child, input), address))
}
