//! A headless Chromium, driven by WebDriver.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    process::{Child, ChildStdout, Stdio},
};

use serde_json::{Value, json};

/// The key that moves a slider to its least value.
pub const HOME: &str = "\u{E011}";

/// The browser ends when this is dropped.
pub struct Browser {
    driver: Child,
    /// Held open, because the driver writes to it.
    _output: BufReader<ChildStdout>,
    http: reqwest::Client,
    port: u16,
    session: String,
}

impl Browser {
    pub async fn open() -> Self {
        let mut command = testkit::server_command("chromedriver").expect(
            "this test needs `chromium` and `chromedriver` in the PATH: `scripts/test --all` \
             installs them",
        );
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut driver = testkit::spawn_server(command).expect("chromedriver can be run");
        let mut output = BufReader::new(driver.stdout.take().unwrap());
        let port = port(&mut output);
        let (http, session) = (reqwest::Client::new(), String::new());
        let mut browser = Self { driver, _output: output, http, port, session };
        let options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                "--hide-scrollbars", "--window-size=1220,1320"],
        });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = browser.post("session", wanted).await;
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    pub async fn go(&self, url: &str) {
        self.order("url", json!({ "url": url })).await;
    }

    pub async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.order(&format!("element/{element}/click"), json!({})).await;
    }

    /// Presses keys while an element has the focus.
    pub async fn press(&self, selector: &str, keys: &str) {
        let element = self.element(selector).await;
        self.order(&format!("element/{element}/value"), json!({ "text": keys })).await;
    }

    pub async fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.textContent ?? ''";
        let text = self.order("execute/sync", json!({ "script": script, "args": [selector] }));
        text.await.as_str().unwrap().to_owned()
    }

    /// Returns the errors in the console since the last call.
    pub async fn errors(&self) -> Vec<String> {
        let entries = self.order("se/log", json!({ "type": "browser" })).await;
        let entries = entries.as_array().unwrap().iter();
        let errors = entries.filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| entry["message"].to_string()).collect()
    }

    async fn element(&self, selector: &str) -> String {
        let order = json!({ "using": "css selector", "value": selector });
        let element = self.order("element", order).await;
        let id = element.as_object().unwrap().values().next();
        id.and_then(Value::as_str).unwrap().to_owned()
    }

    async fn order(&self, path: &str, body: Value) -> Value {
        self.post(&format!("session/{}/{path}", self.session), body).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let url = format!("http://127.0.0.1:{}/{path}", self.port);
        let answer = self.http.post(url).json(&body).send().await.expect("the driver answers");
        let mut answer: Value = answer.json().await.unwrap();
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser would outlive its driver.
        if let Ok(mut driver) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
            let path = format!("/session/{}", self.session);
            let order = format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let _ = driver.write_all(order.as_bytes());
            // It answers when the browser has ended.
            let _ = driver.read(&mut [0]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the port that the driver has chosen.
fn port(output: &mut impl BufRead) -> u16 {
    let started = "ChromeDriver was started successfully on port ";
    let line = output.lines().map(Result::unwrap).find(|line| line.starts_with(started));
    let line = line.expect("chromedriver tells its port");
    line[started.len()..].trim_end_matches('.').parse().unwrap()
}
