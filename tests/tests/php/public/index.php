<?php
require __DIR__ . '/../src/autoload.php';

(new App())->run(Request::current())->send();
