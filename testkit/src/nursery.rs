use std::{
    io,
    process::{Child, Command},
    sync::{LazyLock, mpsc},
    thread,
};

/// A command, and where its child is handed to.
type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts every child.
///
/// A child that is to die with its parent is killed when the *thread* that started it ends, and a test's
/// thread ends with its test. This one lives as long as the process, so a server may be shared by tests.
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
