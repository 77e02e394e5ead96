use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

/// A future that is finished whatever happens to it: dropped before its end, it goes on in a task.
///
/// A release is polled by its caller, for a task would cost a change of threads; but a caller who leaves
/// must not leave the lease behind.
pub(crate) struct Finish<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Finish<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static, runtime: Handle) -> Self {
        Self { future: Some(Box::pin(future)), runtime }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.runtime.spawn(future);
        }
    }
}
