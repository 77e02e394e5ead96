//! Starts the servers of tests, which end with their test process.

use std::{
    env, io,
    path::PathBuf,
    process::{Child, Command},
    sync::{LazyLock, mpsc},
    thread,
};

/// A command, and the channel that takes its child.
type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts every child.
///
/// The kernel kills a child with a parent-death signal when the *thread* that started it ends. The
/// thread of a test ends with the test. This thread lives as long as the process, so that several
/// tests can share a server.
static NURSERY: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (orders, incoming) = mpsc::channel::<Order>();
    thread::spawn(move || {
        for (mut command, reply) in incoming {
            let _ = reply.send(command.spawn());
        }
    });
    orders
});

/// Returns a command that runs a program in the `PATH`, or `None` if it is not there.
///
/// With setpriv, of util-linux, the program also ends when the test process is killed. Without it,
/// the program ends with the test.
pub fn server_command(program: &str) -> Option<Command> {
    let program = find(program)?;
    let Some(setpriv) = find("setpriv") else { return Some(Command::new(program)) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    Some(command)
}

/// Starts what [`server_command`] has returned.
pub fn spawn_server(command: Command) -> io::Result<Child> {
    let (reply, child) = mpsc::channel();
    NURSERY.send((command, reply)).expect("the nursery lives as long as the process");
    child.recv().expect("the nursery answers every order")
}

fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
