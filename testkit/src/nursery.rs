use std::{
    io,
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

pub(super) fn spawn(command: Command) -> io::Result<Child> {
    let (reply, child) = mpsc::channel();
    NURSERY.send((command, reply)).expect("the nursery lives as long as the process");
    child.recv().expect("the nursery answers every order")
}
